// Package load has the command that puts load on servers, and audits whether they keep their limits.
package load

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
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/settings"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/traffic"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

const help = `Send requests, as many as the servers or --rate allow, and measure decisions a second, latency, who decided, and whether more
was admitted than the limits allow. The audit goes by the times of the admissions and trusts no count. The exit code is 3 if more
was admitted, and otherwise 1 if the load was interrupted: then the report covers the time until that.

  throttlectl load --memory --limit 100/1s --keys 1000 --for 2s
  throttlectl load --redis redis://localhost:6379/0 --limit 100/1s --limit 1000/1m --callers 64 --lease
  throttlectl load --redis localhost:6379 --limit 100000/1m --lease --slack 0.05
  throttlectl load --topology groups.json --limit 50/1s+100 --rate 5000/s --keys 100000 --zipf 1.1

` + cluster.ServerHelp + `
  --memory           this process

The keys are throttlectl-load-1 and so on, which no application uses; they expire by themselves. The load is real, so servers
that aren't on this host need --allow-remote. So do sentinels and clusters, which name other servers. If a topology newer than
the file's is in force, the load uses that one, and its servers need the same. It publishes no topology, and follows none that is
pushed while it runs.

What is printed:
  LATENCY         of every request, from when it was due: with --rate a late answer makes others wait
  CREDIT          with --slack: what was admitted before it was charged, and how far that has exceeded a limit
  NOT EXACT       decisions that say that they can be off, by cause
  ABOVE LIMIT     cost that exact decisions admitted above a limit, in the windows that it counts: 0 is what is promised
  BY ALL          the same, of all decisions: those that are not exact may exceed a limit by a stated bound`

const (
	defaultDuration  = 10 * time.Second
	maxDuration      = 24 * time.Hour
	minDuration      = 100 * time.Millisecond
	maxCallers       = 1 << 14
	keyPrefix        = "throttlectl-load-"
	memoryOutOfOrder = time.Second // by how much decisions may be recorded out of order
)

type options struct {
	cluster.Flags
	policies.Selector
	memory, lease, allowRemote bool
	callers, keys              int
	zipf, slack                float64
	rate                       string
	duration                   time.Duration
	seed                       uint64
}

// New makes the load command.
func New(f *cli.Factory) *cobra.Command {
	o := &options{Flags: cluster.Flags{Factory: f}}
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Put load on servers, and see how they limit it",
		Long:  help,
		Args:  cli.Operands(),
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
			return o.load(cmd.Context(), a, b, where)
		},
	}
	o.Flags.Register(cmd)
	settings.Unbind(cmd.Flags(), "topology", "redis") // no load by a setting that was meant to look at servers
	o.Selector.Register(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.memory, "memory", false, "count in this process, without a server")
	flags.BoolVar(&o.lease, "lease", false, "answer from leases where possible")
	flags.Float64Var(&o.slack, "slack", 0, "with --lease, `share` of a limit that may be admitted on credit: before it is charged")
	flags.BoolVar(&o.allowRemote, "allow-remote", false, "put load on servers that are not, or may not be, on this host")
	flags.IntVar(&o.callers, "callers", 16, "how many ask at the same time")
	flags.IntVar(&o.keys, "keys", 1000, "number of keys")
	flags.Float64Var(&o.zipf, "zipf", 0, "exponent of Zipf's law, by which keys are asked for; 0 for all alike")
	flags.StringVar(&o.rate, "rate", "", "`requests` of all callers, such as 5000/s; as many as possible by default")
	flags.DurationVar(&o.duration, "for", defaultDuration, "how long")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the order of keys")
	for _, name := range []string{"callers", "keys", "zipf", "rate", "slack", "for", "seed"} {
		cli.NoFiles(cmd, name)
	}
	return cmd
}

// attack validates the flags, except those of the servers.
func (o *options) attack() (*attack, error) {
	policy, err := o.Policy("")
	if _, wrong := errors.AsType[cli.UsageError](err); err != nil && !wrong {
		return nil, err // of reading the file
	}
	errs := []error{err}
	a := &attack{callers: o.callers, duration: o.duration, seed: o.seed}
	if o.rate != "" {
		if a.rate, err = traffic.ParseRate(o.rate); err == nil && a.rate == 0 {
			err = errors.New("must be more than 0")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--rate: %w", err))
		}
	}
	if o.callers < 1 || o.callers > maxCallers {
		errs = append(errs, fmt.Errorf("--callers = %d: must be from 1 to %d", o.callers, maxCallers))
	}
	if o.duration < minDuration || o.duration > maxDuration {
		errs = append(errs, fmt.Errorf("--for = %v: must be from %v to %v", o.duration, minDuration, maxDuration))
	}
	switch {
	case !(o.slack >= 0 && o.slack < 1): // also of NaN
		errs = append(errs, fmt.Errorf("--slack = %v: must be from 0 to below 1", o.slack))
	case o.slack > 0 && (!o.lease || o.memory):
		errs = append(errs, errors.New("--slack needs --lease and a server: counts in memory are charged at once"))
	}
	a.keys, err = traffic.NewKeys(keyPrefix, o.keys, o.zipf)
	grace := o.Timeout
	if o.memory {
		grace = memoryOutOfOrder
	}
	a.audit = newAudit(&policy, grace)
	return a, cli.Usage(errors.Join(append(errs, err)...))
}

// open opens the selected backend, and returns its description.
func (o *options) open(ctx context.Context) (backend.Backend, string, error) {
	if o.memory {
		if o.Topology != "" || len(o.Redis) > 0 {
			return nil, "", cli.Usage(errors.New("exactly one of --memory, --topology and --redis is needed"))
		}
		b, err := memory.New(memory.Config{})
		return b, "memory", err
	}
	c, err := o.Cluster(ctx)
	if err != nil {
		return nil, "", err
	}
	if err := errors.Join(o.OneServer(), o.checkRemote(remoteServers(c), "")); err != nil {
		return nil, "", err
	}
	if len(c.Single) > 0 {
		b, err := openBackend(c)
		return b, "redis " + c.Single[0].Addr, err
	}
	where := "topology " + o.Topology
	if newer, err := o.followPublished(ctx, c); err != nil {
		return nil, "", err
	} else if newer {
		where += fmt.Sprintf(" (epoch %d is in force)", c.Topology.Epoch)
	}
	b, err := openBackend(c)
	return b, where, err
}

// checkRemote refuses servers that may not be on this host.
func (o *options) checkRemote(remote []string, from string) error {
	if len(remote) == 0 || o.allowRemote {
		return nil
	}
	return cli.Usage(fmt.Errorf("not on this host, or not known to be: %s%s; --allow-remote puts load on them all the same",
		strings.Join(remote, ", "), from))
}

// followPublished replaces the topology by a newer one in force, and reports whether there is one. Its servers are checked before
// any connection to them. Servers that can't be read are no error here: the load reports them.
func (o *options) followPublished(ctx context.Context, c *cluster.Cluster) (newer bool, err error) {
	for c.Topology.Epoch > 0 { // epoch 0 follows no other
		all := c.ReadPublished(ctx)
		for _, p := range all {
			if p.Epoch == c.Topology.Epoch && p.Digest != c.Topology.Digest() {
				return newer, fmt.Errorf("another topology of epoch %d is in force on %s%s", p.Epoch, p.Node, cluster.DescribeChange(p.Text, c.Topology))
			}
		}
		newest := cluster.NewestPublished(all)
		if newest.Epoch <= c.Topology.Epoch {
			return newer, nil
		}
		force, err := c.TrustedTopology(newest)
		if err != nil {
			return newer, err
		}
		c.Topology, newer = force, true
		if err := o.checkRemote(remoteServers(c), fmt.Sprintf(" of epoch %d, which is in force", force.Epoch)); err != nil {
			return newer, err
		}
	}
	return newer, nil
}

// openBackend opens the servers as an application does, but without an epoch: then the router publishes nothing, and follows no
// newer topology, whose servers weren't checked.
func openBackend(c *cluster.Cluster) (backend.Backend, error) {
	cfg := c.BackendConfig()
	if len(c.Single) > 0 {
		return redisbackend.Open(&c.Single[0], cfg)
	}
	topology := c.Topology
	topology.Epoch, topology.Previous, topology.Baseline = 0, nil, false
	return router.Open(topology, router.Config{Redis: &c.Node, Sentinel: &c.Sentinel, Backend: cfg, ReadTimeout: c.Timeout})
}

// remoteServers are the servers that may not be on this host.
func remoteServers(c *cluster.Cluster) (all []string) {
	check := func(address string) {
		if !loopback(address) {
			all = append(all, address)
		}
	}
	for i := range c.Single {
		if c.Single[i].Network != "unix" {
			check(c.Single[i].Addr)
		}
	}
	for _, g := range c.Topology.Groups {
		if g.Primary == "" { // its servers name others
			all = append(all, fmt.Sprintf("group %s (%s)", g.Name, g))
			continue
		}
		check(g.Primary)
		for _, replica := range g.Replicas {
			check(replica)
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

// load runs the attack and prints the report.
func (o *options) load(ctx context.Context, a *attack, b backend.Backend, where string) error {
	var leases *lease.Lease
	if o.lease {
		var cfg lease.Config
		if o.slack > 0 {
			cfg.Slack, cfg.Processes = o.slack, 1 // no other process has the keys
		}
		var err error
		if leases, err = lease.New(b, cfg); err != nil {
			return err
		}
		defer leases.Close() // before its inner backend
		b = leases
	}
	t, err := throttler.New(throttler.Config{Backend: b, Policy: *a.audit.policy, Failure: throttler.FailError})
	if err != nil {
		return err
	}
	defer t.Close()
	a.throttler = t
	pinging, cancel := context.WithTimeout(ctx, o.Timeout)
	err = t.Ping(pinging)
	cancel()
	if err != nil {
		return err
	}
	a.start = time.Now()
	shown := terminal.StartProgress(o.ErrOut, a.duration, a.soFar)
	seen, took := a.run(ctx)
	var short error
	if ctx.Err() != nil && took < a.duration {
		short = fmt.Errorf("interrupted: it was to last %v", a.duration)
	}
	shown.End()
	r := a.report(where, seen, took)
	if leases != nil {
		r.lease(leases.Stats(), a.audit.policy, o.slack)
	}
	return errors.Join(o.Print(r), r.err(), short)
}

// soFar is the text of the progress.
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
