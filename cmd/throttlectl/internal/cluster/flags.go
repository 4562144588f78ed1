package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/settings"
	"github.com/sluice-go/sluice/internal/redisopts"
	"github.com/sluice-go/sluice/router"
)

// Flags select the servers of a command, and how to log in there.
type Flags struct {
	*cli.Factory
	Topology string
	Redis    []string
	Prefix   string

	user                               string
	password                           PasswordFlags
	sentinelUser, sentinelPasswordFile string
	db                                 int
	tls                                bool
	ca                                 string

	allow       []string
	topologyKey string
}

const ServerHelp = `Where the counts are:

  --topology FILE    the groups of servers that the applications use, as router.LoadTopology reads them
  --redis URL        one server: redis://user@host:port/db, or rediss:// for TLS

` + PasswordHelp

// Register adds all flags, for commands about a topology or one server.
func (f *Flags) Register(cmd *cobra.Command) {
	f.RegisterTopology(cmd)
	f.RegisterLogin(cmd)
	cmd.Flags().StringArrayVar(&f.Redis, "redis", nil, "`url` or host:port of a Redis server, in place of a topology; better without a password")
	cli.NoFiles(cmd, "redis")
	settings.Bind(cmd.Flags(), settings.URL, "redis", "topology", "user", "db", "tls", "sentinel-user", "sentinel-password-file")
}

// RegisterLogin adds the flags of commands whose operand is the topology.
func (f *Flags) RegisterLogin(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Prefix, "prefix", "sl:", "start of the names of stored keys, as the applications have it")
	flags.StringVar(&f.user, "user", "", "`name` to log in with at the servers of a topology")
	f.password.Register(f.Factory, flags)
	flags.StringVar(&f.sentinelUser, "sentinel-user", "", "`name` to log in with at sentinels")
	flags.StringVar(&f.sentinelPasswordFile, "sentinel-password-file", "", "`file` with the password for sentinels")
	flags.IntVar(&f.db, "db", 0, "`number` of the database on the servers of a topology")
	flags.BoolVar(&f.tls, "tls", false, "talk TLS to the servers of a topology")
	flags.StringVar(&f.ca, "ca", "", "`file` of the certificates to trust, PEM; implies --tls")
	flags.StringArrayVar(&f.allow, "allow-address", nil, "a `host`, *.domain, IP address or prefix to which a newer topology on the servers may "+
		"lead, besides the servers of the file; may be repeated")
	flags.StringVar(&f.topologyKey, "topology-key", "", "`file` with the public keys, PEM, of which one must have signed a newer topology on the servers")
	for _, flag := range []string{"prefix", "user", "sentinel-user", "db", "allow-address"} {
		cli.NoFiles(cmd, flag)
		settings.Bind(flags, settings.Text, flag)
	}
	settings.Bind(flags, settings.Text, "tls")
	for _, flag := range []string{PasswordFile, "sentinel-password-file", "ca", "topology-key"} {
		settings.Bind(flags, settings.Path, flag)
	}
	settings.Exclude(flags, "ask-password", PasswordFile)
}

// RegisterTopology adds --topology alone, for commands that need no server.
func (f *Flags) RegisterTopology(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Topology, "topology", "", "`file` of the topology, JSON or YAML")
	_ = cmd.MarkFlagFilename("topology", cli.DocumentExtensions...)
	settings.Bind(cmd.Flags(), settings.Path, "topology", "redis")
}

// LoadTopology loads the topology of --topology, which must be given.
func (f *Flags) LoadTopology() (router.Topology, error) {
	if f.Topology == "" {
		return router.Topology{}, cli.Usage(errors.New("--topology is needed: the file of the groups"))
	}
	return router.LoadTopology(f.Topology)
}

// Cluster is what the flags select. It does no network I/O.
func (f *Flags) Cluster(ctx context.Context) (*Cluster, error) {
	switch {
	case (f.Topology == "") == (len(f.Redis) == 0):
		return nil, cli.Usage(errors.New("exactly one of --topology and --redis is needed: the flag, or a setting (see throttlectl config --help)"))
	case f.Topology == "" && (f.user != "" || f.db != 0 || f.tls || f.sentinelUser != "" || f.sentinelPasswordFile != ""):
		return nil, cli.Usage(errors.New("--user, --db, --tls and those for sentinels go with --topology: the URL of --redis has it all"))
	case f.db < 0:
		return nil, cli.Usage(fmt.Errorf("--db = %d: must be 0 or more", f.db))
	}
	c := &Cluster{Prefix: f.Prefix, Timeout: f.Timeout, Trust: router.Config{AllowedAddresses: f.allow}}
	if f.topologyKey != "" {
		text, err := os.ReadFile(f.topologyKey)
		if err == nil {
			c.Trust.TopologyKeys, err = router.ParseTopologyKeys(text)
		}
		if err != nil {
			return nil, fmt.Errorf("--topology-key: %w", err)
		}
	}
	trusted, err := f.trusted()
	if err != nil {
		return nil, err
	}
	for _, url := range f.Redis {
		opts, err := f.password.Options(ctx, url)
		if err != nil {
			return nil, err
		}
		if trusted != nil {
			if opts.TLSConfig == nil {
				return nil, cli.Usage(errors.New("--ca goes with rediss://"))
			}
			opts.TLSConfig.RootCAs = trusted
		}
		c.Single = append(c.Single, *opts)
	}
	if f.Topology == "" {
		return c, nil
	}
	if c.Topology, err = f.LoadTopology(); err != nil {
		return nil, err
	}
	return c, f.credentials(ctx, c, trusted)
}

// OneServer refuses several --redis.
func (f *Flags) OneServer() error {
	if len(f.Redis) > 1 {
		return cli.Usage(errors.New("--redis is given twice: several servers need a --topology, which says who has which key"))
	}
	return nil
}

// credentials fills in how to log in at a topology's servers.
func (f *Flags) credentials(ctx context.Context, c *Cluster, trusted *x509.CertPool) error {
	password, err := f.password.read(ctx)
	if err != nil {
		return err
	}
	sentinels, err := readSecret(f.sentinelPasswordFile)
	if err != nil {
		return err
	}
	var secure *tls.Config
	if f.tls || trusted != nil {
		secure = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted}
	}
	c.Node = redis.Options{Username: f.user, Password: password, DB: f.db, TLSConfig: secure}
	c.Sentinel = redis.Options{Username: f.sentinelUser, Password: sentinels, TLSConfig: secure}
	redisopts.Harden(&c.Node, f.Timeout)
	redisopts.Harden(&c.Sentinel, f.Timeout)
	return nil
}

func (f *Flags) trusted() (*x509.CertPool, error) {
	if f.ca == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--ca: %s has no certificate", f.ca)
	}
	return pool, nil
}

// CompleteGroups completes the value of a flag with the groups of --topology.
func (f *Flags) CompleteGroups(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	_ = f.ApplySettings(cmd) // which cobra would do later
	var names []string
	if t, err := f.LoadTopology(); err == nil {
		for _, g := range t.Groups {
			names = append(names, g.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
