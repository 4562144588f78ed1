package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

const loadHelp = `Ask as fast as the servers, or --rate, allow, and measure: decisions a second, latency, who decided, and whether more was
admitted than the limits say. That is found by what was admitted when, whatever anybody has counted. The exit code is 3 if
it was more, and otherwise 1 if the load was interrupted: the report is of what was asked until then.

  throttlectl load --memory --limit 100/1s --keys 1000 --for 2s
  throttlectl load --redis redis://localhost:6379/0 --limit 100/1s --limit 1000/1m --callers 64 --lease
  throttlectl load --topology groups.json --limit 50/1s+100 --rate 5000/s --keys 100000 --zipf 1.1

` + serverHelp + `
  --memory           this process

The keys are throttlectl-load-1 and so on: none of the applications', and left to expire. The load is real all the same, so
servers that aren't on this host are refused without --allow-remote. So are sentinels and clusters, which name others. Where
a newer topology than the file's is in force, the load goes by that, and its servers are judged, too. It tells nobody of its
topology, and doesn't follow one that is pushed while it runs.

What is printed:
  LATENCY         of every request, from when it was due: with --rate a late answer makes others wait
  NOT EXACT       decisions that say that they can be off, by cause
  ABOVE LIMIT     cost that exact decisions admitted above a limit, in the windows that it counts: 0 is what is promised
  BY ALL          the same, of all decisions: those that are not exact may exceed a limit by a stated bound`

const (
	defaultLoad      = 10 * time.Second
	maxLoad          = 24 * time.Hour
	minLoad          = 100 * time.Millisecond
	maxCallers       = 1 << 14
	loadPrefix       = "throttlectl-load-"
	memoryOutOfOrder = time.Second // is how much later than another decision one may be entered
)

// loadOptions are the flags of load.
type loadOptions struct {
	serverFlags
	policyFlags
	memory, lease, allowRemote bool
	callers, keys              int
	zipf                       float64
	rate                       string
	lasts                      time.Duration
	seed                       uint64
}

func newLoad(g *globals) *cobra.Command {
	o := &loadOptions{serverFlags: serverFlags{globals: g}}
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Put load on servers, and see how they limit it",
		Long:  loadHelp,
		Args:  operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := o.attack()
			if err != nil {
				return err
			}
			b, where, err := o.open(cmd.Context())
			if err != nil {
				return err
			}
			defer b.Close()
			return o.load(cmd, a, b, where)
		},
	}
	o.serverFlags.register(cmd)
	o.policyFlags.register(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.memory, "memory", false, "count in this process, without a server")
	flags.BoolVar(&o.lease, "lease", false, "answer from leases where possible")
	flags.BoolVar(&o.allowRemote, "allow-remote", false, "put load on servers that are not, or may not be, on this host")
	flags.IntVar(&o.callers, "callers", 16, "how many ask at the same time")
	flags.IntVar(&o.keys, "keys", 1000, "number of keys")
	flags.Float64Var(&o.zipf, "zipf", 0, "exponent of Zipf's law, by which keys are asked for; 0 for all alike")
	flags.StringVar(&o.rate, "rate", "", "`requests` of all callers, such as 5000/s; as many as possible by default")
	flags.DurationVar(&o.lasts, "for", defaultLoad, "how long")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the order of keys")
	for _, name := range []string{"callers", "keys", "zipf", "rate", "for", "seed"} {
		noFiles(cmd, name)
	}
	return cmd
}

// attack reads the flags, but for the servers.
func (o *loadOptions) attack() (*attack, error) {
	policy, err := o.policy("")
	if _, wrong := errors.AsType[usageError](err); err != nil && !wrong {
		return nil, err // of the file
	}
	errs := []error{err}
	a := &attack{callers: o.callers, lasts: o.lasts, seed: o.seed}
	if o.rate != "" {
		if a.rate, err = parseRate(o.rate); err == nil && a.rate == 0 {
			err = errors.New("must be more than 0")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--rate: %w", err))
		}
	}
	if o.callers < 1 || o.callers > maxCallers {
		errs = append(errs, fmt.Errorf("--callers = %d: must be from 1 to %d", o.callers, maxCallers))
	}
	if o.lasts < minLoad || o.lasts > maxLoad {
		errs = append(errs, fmt.Errorf("--for = %v: must be from %v to %v", o.lasts, minLoad, maxLoad))
	}
	a.keys, err = newPopularity(loadPrefix, o.keys, o.zipf)
	grace := o.timeout
	if o.memory {
		grace = memoryOutOfOrder
	}
	a.audit = newAudit(&policy, grace)
	return a, usage(errors.Join(append(errs, err)...))
}

// open opens what the command line selects, and says what that is. It asks the servers of a topology which one is in force.
func (o *loadOptions) open(ctx context.Context) (backend.Backend, string, error) {
	if o.memory {
		if o.topology != "" || len(o.redis) > 0 {
			return nil, "", usage(errors.New("exactly one of --memory, --topology and --redis is needed"))
		}
		b, err := memory.New(memory.Config{})
		return b, "memory", err
	}
	s, err := o.site()
	if err != nil {
		return nil, "", err
	}
	if err := errors.Join(o.oneServer(), o.judgeRemote(s.remote(), "")); err != nil {
		return nil, "", err
	}
	if len(s.single) > 0 {
		b, err := s.backend()
		return b, "redis " + s.single[0].Addr, err
	}
	where := "topology " + o.topology
	if newer, err := o.followForce(ctx, s); err != nil {
		return nil, "", err
	} else if newer {
		where += fmt.Sprintf(" (epoch %d is in force)", s.topology.Epoch)
	}
	b, err := s.backend()
	return b, where, err
}

// judgeRemote refuses servers that aren't sure to be on this host.
func (o *loadOptions) judgeRemote(remote []string, from string) error {
	if len(remote) == 0 || o.allowRemote {
		return nil
	}
	return usage(fmt.Errorf("not on this host, or not known to be: %s%s; --allow-remote puts load on them all the same",
		strings.Join(remote, ", "), from))
}

// followForce replaces the site's topology by a newer one that is in force, and reports whether there is one. Its servers are
// judged before they are asked anything; what can't be read is left to the load to find out.
func (o *loadOptions) followForce(ctx context.Context, s *site) (newer bool, err error) {
	for s.topology.Epoch > 0 { // one of epoch 0 follows nobody
		boards, done := s.boards(ctx, s.topology.Groups)
		all := readBoards(ctx, boards)
		done()
		for _, p := range all {
			if p.Epoch == s.topology.Epoch && p.Digest != s.topology.Digest() {
				return newer, fmt.Errorf("another topology of epoch %d is in force on %s%s", p.Epoch, p.Node, inWords(p.text, s.topology))
			}
		}
		newest := newestOf(all)
		if newest.Epoch <= s.topology.Epoch {
			return newer, nil
		}
		force, err := s.posted(newest)
		if err != nil {
			return newer, err
		}
		s.topology, newer = force, true
		if err := o.judgeRemote(s.remote(), fmt.Sprintf(" of epoch %d, which is in force", force.Epoch)); err != nil {
			return newer, err
		}
	}
	return newer, nil
}

// backend opens the servers as an application does, except that it tells nobody of its topology and follows none that comes
// meanwhile, whose servers nobody has judged: without an epoch, a router does neither.
func (s *site) backend() (backend.Backend, error) {
	cfg := redisbackend.Config{Prefix: s.prefix, Timeout: s.timeout}
	if len(s.single) > 0 {
		return redisbackend.Open(&s.single[0], cfg)
	}
	topology := s.topology
	topology.Epoch, topology.Previous, topology.Baseline = 0, nil, false
	return router.Open(topology, router.Config{Redis: &s.node, Sentinel: &s.sentinel, Backend: cfg, ReadTimeout: s.timeout})
}

// remote is the servers that aren't sure to be on this host.
func (s *site) remote() (all []string) {
	check := func(address string) {
		if !loopback(address) {
			all = append(all, address)
		}
	}
	for i := range s.single {
		if s.single[i].Network != "unix" {
			check(s.single[i].Addr)
		}
	}
	for _, g := range s.topology.Groups {
		switch {
		case len(g.Sentinels) > 0:
			all = append(all, "what the sentinels of "+g.Name+" name")
		case len(g.Cluster) > 0:
			all = append(all, "the cluster "+g.Name)
		default:
			check(g.Primary)
			for _, replica := range g.Replicas {
				check(replica)
			}
		}
	}
	return all
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// load runs the attack and prints what came of it.
func (o *loadOptions) load(cmd *cobra.Command, a *attack, b backend.Backend, where string) error {
	var ls *lease.Lease
	if o.lease {
		var err error
		if ls, err = lease.New(b, lease.Config{}); err != nil {
			return err
		}
		defer ls.Close() // before what it holds
		b = ls
	}
	t, err := throttler.New(throttler.Config{Backend: b, Policy: *a.audit.policy, Failure: throttler.FailError})
	if err != nil {
		return err
	}
	defer t.Close()
	a.throttler = t
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	err = t.Ping(ctx)
	cancel()
	if err != nil {
		return err
	}
	a.start = time.Now()
	shown := startProgress(cmd.ErrOrStderr(), a.lasts, a.soFar)
	seen, took := a.run(cmd.Context())
	var short error
	if cmd.Context().Err() != nil && took < a.lasts {
		short = fmt.Errorf("interrupted: it was to last %v", a.lasts)
	}
	shown.end()
	r := a.report(where, seen, took)
	if ls != nil {
		r.lease(ls.Stats())
	}
	return errors.Join(o.print(cmd.OutOrStdout(), r), r.err(), short)
}

// soFar is a line for the progress.
func (a *attack) soFar() string {
	decided, denied := a.decided.Load(), a.denied.Load()
	rate := float64(decided) / time.Since(a.start).Seconds()
	return fmt.Sprintf("%.0f decisions a second, %.1f%% denied, %d errors", rate, percentOf(denied, decided), a.fail.Load())
}

func percentOf(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(n) / float64(of)
}
