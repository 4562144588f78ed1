package router_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

// oracle is a sentinel with scripted answers.
type oracle struct {
	addr string

	mu       sync.Mutex // guards what follows
	epoch    int
	primary  string
	replicas []string
	away     bool // of the replicas: whether the sentinel can reach them
	asked    int
	listens  map[net.Conn]bool
	conns    map[net.Conn]bool
}

func newOracle(t *testing.T, epoch int, primary string, replicas ...string) *oracle {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{
		addr: l.Addr().String(), epoch: epoch, primary: primary, replicas: replicas,
		listens: make(map[net.Conn]bool), conns: make(map[net.Conn]bool),
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			o.mu.Lock()
			o.conns[conn] = true
			o.mu.Unlock()
			all.Go(func() {
				o.serve(conn)
				o.mu.Lock()
				delete(o.conns, conn)
				delete(o.listens, conn)
				o.mu.Unlock()
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		o.mu.Lock()
		for conn := range o.conns {
			_ = conn.Close()
		}
		o.mu.Unlock()
		all.Wait()
	})
	return o
}

func (o *oracle) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, o.answer(conn, args)); err != nil {
			return
		}
	}
}

func readCommand(in *bufio.Reader) ([]string, error) {
	line := func() (int, error) { // the number after the type
		text, err := in.ReadString('\n')
		if err != nil || len(text) < 2 {
			return 0, io.ErrUnexpectedEOF
		}
		return strconv.Atoi(strings.TrimSpace(text[1:]))
	}
	n, err := line()
	args := make([]string, n)
	for i := range args {
		size, err := line()
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		args[i] = string(text[:size])
	}
	return args, err
}

func bulk(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

func (o *oracle) answer(conn net.Conn, args []string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	words := strings.ToLower(strings.Join(args, " "))
	switch {
	case strings.HasPrefix(words, "sentinel master "):
		o.asked++
		return bulk("name", "main", "config-epoch", strconv.Itoa(o.epoch), "flags", "master")
	case strings.HasPrefix(words, "sentinel get-master-addr-by-name "):
		host, port, _ := net.SplitHostPort(o.primary)
		return bulk(host, port)
	case strings.HasPrefix(words, "sentinel replicas "):
		text := fmt.Sprintf("*%d\r\n", len(o.replicas))
		flags := "slave"
		if o.away {
			flags = "s_down,slave"
		}
		for _, replica := range o.replicas {
			host, port, _ := net.SplitHostPort(replica)
			text += bulk("ip", host, "port", port, "flags", flags)
		}
		return text
	case args[0] == "subscribe":
		o.listens[conn] = true
		return "*3\r\n$9\r\nsubscribe\r\n" + fmt.Sprintf("$%d\r\n%s\r\n", len(args[1]), args[1]) + ":1\r\n"
	}
	return "-ERR unknown command\r\n"
}

// say changes what the sentinel says.
func (o *oracle) say(epoch int, primary string, replicas ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.primary, o.replicas = epoch, primary, replicas
}

// announce sends a failover message to all subscribers.
func (o *oracle) announce() {
	o.mu.Lock()
	defer o.mu.Unlock()
	host, port, _ := net.SplitHostPort(o.primary)
	for conn := range o.listens {
		_, _ = io.WriteString(conn, bulk("message", "+switch-master", "main 10.0.0.1 1 "+host+" "+port))
	}
}

func (o *oracle) times() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked
}

func (o *oracle) open() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.conns)
}

func ask(oracles ...*oracle) router.Group {
	g := router.Group{Name: "a", Master: "main"}
	for _, o := range oracles {
		g.Sentinels = append(g.Sentinels, o.addr)
	}
	return g
}

func changes(l *log) (all []string) {
	for _, e := range l.all() {
		if e.Kind == router.PrimaryChanged {
			all = append(all, e.From+">"+e.To)
		}
	}
	return all
}

const one, two, three = "10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"

// TestSentinelsDisagree: the view of the newest failover counts, whichever sentinel has it, and older ones change nothing.
func TestSentinelsDisagree(t *testing.T) {
	t.Parallel()
	p := newPlant()
	a, b, c := newOracle(t, 1, one, two, three), newOracle(t, 1, one, two, three), newOracle(t, 1, one, two, three)
	var events log
	r := p.open(t, router.Topology{Groups: []router.Group{ask(a, b, c)}}, router.Config{OnEvent: events.add})
	takeN(t, r, "k", tenAnHour, 1)
	await(t, "the first primary", func() bool { return primaryOf(r, "a") == one })
	await(t, "all are listened to", func() bool {
		for _, o := range []*oracle{a, b, c} {
			o.mu.Lock()
			n := len(o.listens)
			o.mu.Unlock()
			if n == 0 {
				return false
			}
		}
		return true
	})
	a.say(2, two, one, three)
	a.announce()
	await(t, "what the first says of the failover", func() bool { return primaryOf(r, "a") == two })
	asked := b.times()
	b.announce() // of something else, and it still knows the old primary
	c.announce()
	await(t, "the others are asked", func() bool { return b.times() > asked && c.times() > 1 })
	c.say(3, three, two, one)
	c.announce()
	await(t, "what the last says of another one", func() bool { return primaryOf(r, "a") == three })
	a.announce()
	b.say(2, two)
	b.announce()
	asked = a.times()
	await(t, "all are asked again", func() bool { a.announce(); return a.times() > asked+3 })
	if got, want := fmt.Sprint(changes(&events)), fmt.Sprint([]string{">" + one, one + ">" + two, two + ">" + three}); got != want {
		t.Errorf("the primary was %s, want %s", got, want)
	}
	if n := len(r.Nodes()); n != 3 {
		t.Errorf("%d nodes, want 3", n)
	}
}

// replyError is a reply of a server.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// TestReadOnlyResolves: what a demoted primary answers has the sentinels asked at once, without a heartbeat, a breaker or a
// message.
func TestReadOnlyResolves(t *testing.T) {
	t.Parallel()
	p := newPlant()
	o := newOracle(t, 1, one, two)
	o.say(1, one, two)
	r := p.open(t, router.Topology{Groups: []router.Group{ask(o)}}, router.Config{Heartbeat: -1, TripAfter: -1})
	takeN(t, r, "k", tenAnHour, 1)
	await(t, "the first primary", func() bool { return primaryOf(r, "a") == one })
	time.Sleep(300 * time.Millisecond) // what is asked at the start
	asked := o.times()
	o.say(2, two, one)
	p.machine(one).fault.Store(&backend.Error{
		Op: "take", Kind: backend.Unavailable, Err: replyError("READONLY You can't write against a read only replica."),
	})
	start := time.Now()
	await(t, "a take", func() bool { return take(t, r) == nil })
	if took := time.Since(start); took > 8*time.Second { // it takes 10 s otherwise
		t.Errorf("it took %v", took)
	}
	if o.times() == asked || primaryOf(r, "a") != two {
		t.Errorf("asked %d times, primary %s", o.times()-asked, primaryOf(r, "a"))
	}
}

// TestSentinelReplicas: replicas come and go as the sentinels see them.
func TestSentinelReplicas(t *testing.T) {
	t.Parallel()
	p := newPlant()
	a, b := newOracle(t, 1, one, two, three), newOracle(t, 1, one, two, three)
	r := p.open(t, router.Topology{Groups: []router.Group{ask(a, b)}}, router.Config{Heartbeat: 100 * time.Millisecond})
	count := func(n int) func() bool { return func() bool { return len(r.Nodes()) == n } }
	await(t, "both", count(3))
	p.machine(one).down.Store(true) // so that they are asked more often
	set := func(o *oracle, away bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.away = away
	}
	set(a, true)
	asked := a.times()
	await(t, "another look", func() bool { _ = take(t, r); return a.times() > asked+2 })
	if n := len(r.Nodes()); n != 3 {
		t.Errorf("%d nodes, but one sentinel reaches the replicas", n)
	}
	set(b, true)
	await(t, "none", func() bool { _ = take(t, r); return len(r.Nodes()) == 1 })
	set(a, false)
	await(t, "both again", func() bool { _ = take(t, r); return len(r.Nodes()) == 3 })
}

// TestFollowerLives as long as a topology has the group: through changes that keep it, and until windows under it are over.
func TestFollowerLives(t *testing.T) {
	t.Parallel()
	p := newPlant()
	o := newOracle(t, 1, one)
	static := router.Group{Name: "s", Primary: "10.0.0.9:6379"}
	var events log
	r := p.open(t, router.Topology{Epoch: 1, Groups: []router.Group{ask(o)}},
		router.Config{OnEvent: events.add, Drain: 3 * time.Second, Settle: time.Millisecond, Heartbeat: 50 * time.Millisecond})
	await(t, "a primary", func() bool { return primaryOf(r, "a") == one })
	update(t, r, router.Topology{Epoch: 2, Groups: []router.Group{ask(o), static}})
	if got := primaryOf(r, "a"); got != one {
		t.Errorf("after a change that keeps the group its primary is %s", got)
	}
	await(t, "its listener", func() bool { return o.open() > 0 })
	update(t, r, router.Topology{Epoch: 3, Groups: []router.Group{static}})
	o.say(2, two)
	o.announce()
	await(t, "it is followed for the sake of the counts there", func() bool { return len(changes(&events)) == 2 })
	epoch := uint64(3)
	eventually(t, 30*time.Second, "nobody asks any more", func() bool {
		time.Sleep(100 * time.Millisecond)
		epoch++
		update(t, r, router.Topology{Epoch: epoch, Groups: []router.Group{static}}) // what is over is forgotten at a change
		return o.open() == 0
	})
	if err := r.Close(); err != nil && !errors.Is(err, backend.ErrClosed) {
		t.Error(err)
	}
}
