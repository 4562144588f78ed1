package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/router"
)

// serverFlags say which servers are meant, and how to log in there.
type serverFlags struct {
	*Factory
	topology string
	redis    []string
	prefix   string

	user                               string
	password                           passwordFlags
	sentinelUser, sentinelPasswordFile string
	db                                 int
	tls                                bool
	ca                                 string

	allow       []string
	topologyKey string
}

const serverHelp = `Where the counts are:

  --topology FILE    the groups of servers that the applications use, as router.LoadTopology reads them
  --redis URL        one server: redis://user@host:port/db, or rediss:// for TLS

` + passwordHelp

// register is for commands about a topology or one server.
func (f *serverFlags) register(cmd *cobra.Command) {
	f.registerTopology(cmd)
	f.registerLogin(cmd)
	cmd.Flags().StringArrayVar(&f.redis, "redis", nil, "`url` of a Redis server, in place of a topology; better without a password")
	noFiles(cmd, "redis")
}

// registerLogin is for commands about the topology that is their operand.
func (f *serverFlags) registerLogin(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.prefix, "prefix", "sl:", "start of the names of stored keys, as the applications have it")
	flags.StringVar(&f.user, "user", "", "`name` to log in with at the servers of a topology")
	f.password.register(f.Factory, flags)
	flags.StringVar(&f.sentinelUser, "sentinel-user", "", "`name` to log in with at sentinels")
	flags.StringVar(&f.sentinelPasswordFile, "sentinel-password-file", "", "`file` with the password for sentinels")
	flags.IntVar(&f.db, "db", 0, "`number` of the database on the servers of a topology")
	flags.BoolVar(&f.tls, "tls", false, "talk TLS to the servers of a topology")
	flags.StringVar(&f.ca, "ca", "", "`file` of the certificates to trust, PEM; implies --tls")
	flags.StringArrayVar(&f.allow, "allow-address", nil, "a `host`, *.domain, IP address or prefix to which a newer topology on the servers may "+
		"lead, besides the servers of the file; may be repeated")
	flags.StringVar(&f.topologyKey, "topology-key", "", "`file` with the public keys, PEM, of which one must have signed a newer topology on the servers")
	for _, flag := range []string{"prefix", "user", "sentinel-user", "db", "allow-address"} {
		noFiles(cmd, flag)
	}
}

// registerTopology is for commands that need no server.
func (f *serverFlags) registerTopology(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.topology, "topology", "", "JSON `file` of the topology")
	_ = cmd.MarkFlagFilename("topology", "json")
}

// file reads the topology, for commands that can't do without.
func (f *serverFlags) file() (router.Topology, error) {
	if f.topology == "" {
		return router.Topology{}, usage(errors.New("--topology is needed: the JSON file of the groups"))
	}
	return router.LoadTopology(f.topology)
}

// cluster is the servers that a command is about.
type cluster struct {
	topology       router.Topology // without groups if there is one server only
	node, sentinel redis.Options   // of a topology's: templates, without the address
	single         []redis.Options
	prefix         string
	timeout        time.Duration
	trust          router.Config // what a published topology is held to
}

// cluster reads the flags. It does no network I/O.
func (f *serverFlags) cluster(ctx context.Context) (*cluster, error) {
	switch {
	case (f.topology == "") == (len(f.redis) == 0):
		return nil, usage(errors.New("exactly one of --topology and --redis is needed"))
	case f.topology == "" && (f.user != "" || f.db != 0 || f.tls || f.sentinelUser != "" || f.sentinelPasswordFile != ""):
		return nil, usage(errors.New("--user, --db, --tls and those for sentinels go with --topology: the URL of --redis has it all"))
	case f.db < 0:
		return nil, usage(fmt.Errorf("--db = %d: must be 0 or more", f.db))
	}
	s := &cluster{prefix: f.prefix, timeout: f.Timeout, trust: router.Config{AllowedAddresses: f.allow}}
	if f.topologyKey != "" {
		text, err := os.ReadFile(f.topologyKey)
		if err == nil {
			s.trust.TopologyKeys, err = router.ParseTopologyKeys(text)
		}
		if err != nil {
			return nil, fmt.Errorf("--topology-key: %w", err)
		}
	}
	trusted, err := f.trusted()
	if err != nil {
		return nil, err
	}
	for _, url := range f.redis {
		opts, err := f.password.options(ctx, url)
		if err != nil {
			return nil, err
		}
		if trusted != nil {
			if opts.TLSConfig == nil {
				return nil, usage(errors.New("--ca goes with rediss://"))
			}
			opts.TLSConfig.RootCAs = trusted
		}
		s.single = append(s.single, *opts)
	}
	if f.topology == "" {
		return s, nil
	}
	if s.topology, err = f.file(); err != nil {
		return nil, err
	}
	return s, f.credentials(ctx, s, trusted)
}

// oneServer refuses more servers than a command can ask.
func (f *serverFlags) oneServer() error {
	if len(f.redis) > 1 {
		return usage(errors.New("--redis is given twice: several servers need a --topology, which says who has which key"))
	}
	return nil
}

// credentials fills in the templates of a topology's servers.
func (f *serverFlags) credentials(ctx context.Context, s *cluster, trusted *x509.CertPool) error {
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
	s.node = redis.Options{Username: f.user, Password: password, DB: f.db, TLSConfig: secure}
	s.sentinel = redis.Options{Username: f.sentinelUser, Password: sentinels, TLSConfig: secure}
	harden(&s.node, f.Timeout)
	harden(&s.sentinel, f.Timeout)
	return nil
}

func (f *serverFlags) trusted() (*x509.CertPool, error) {
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

// groupNames completes the value of a flag with the groups of the topology that the command line names so far.
func (f *serverFlags) groupNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if t, err := f.file(); err == nil {
		for _, g := range t.Groups {
			names = append(names, g.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
