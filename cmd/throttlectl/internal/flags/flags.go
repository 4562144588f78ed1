// Package flags has the commands that read and change feature flags.
package flags

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/featureflag"
)

// options select where the flags are stored.
type options struct {
	*cli.Factory
	file, redis, redisKey string
	password              cluster.PasswordFlags
}

const help = `Read and change percentage flags, where the applications read them:

  --file PATH                    a JSON file
  --redis URL --redis-key KEY    a hash on a Redis server: redis://user@host:port/db, or rediss:// for TLS

` + cluster.PasswordHelp + `

Every change raises the flag's version. Applications follow at their next refresh; those that read Redis, at once.`

// New makes the flag command.
func New(f *cli.Factory) *cobra.Command {
	o := &options{Factory: f}
	cmd := cli.Group(&cobra.Command{
		Use:   "flag",
		Short: "Read and change percentage flags",
		Long:  help,
	},
		newGet(o),
		newSet(o),
		newChange(o, "kill", "Make the flag 0 % everywhere, and keep its percentage for revive", featureflag.Kill),
		newChange(o, "revive", "End what kill began", featureflag.Revive),
		newWatch(o),
	)
	cmd.PersistentFlags().StringVar(&o.file, "file", "", "JSON `path` of the flags")
	cmd.PersistentFlags().StringVar(&o.redis, "redis", "", "`url` of the Redis server, better without a password: host:port or redis://user@host:port/db")
	o.password.Register(f, cmd.PersistentFlags())
	cmd.PersistentFlags().StringVar(&o.redisKey, "redis-key", "", "`key` of the hash of flags, with --redis")
	return cmd
}

// source opens where the flags are stored; the returned function closes it.
func (o *options) source(cmd *cobra.Command) (featureflag.Source, func(), error) {
	given := cmd.Flags().Changed
	switch {
	case given("file") == given("redis"):
		return nil, nil, cli.Usage(errors.New("exactly one of --file and --redis is needed"))
	case given("file") && given("redis-key"):
		return nil, nil, cli.Usage(errors.New("--redis-key goes with --redis, not with --file"))
	case given("file") && o.password.Given():
		return nil, nil, cli.Usage(errors.New("--password-file and --ask-password go with --redis, not with --file"))
	case given("file") && o.file == "":
		return nil, nil, cli.Usage(errors.New("--file is empty"))
	case given("file"):
		return featureflag.File(o.file), func() {}, nil
	case o.redisKey == "":
		// No default: with a wrong key, set would make a flag that no application reads.
		return nil, nil, cli.Usage(errors.New("--redis needs --redis-key, the key that the applications read"))
	}
	opts, err := o.password.Options(cmd.Context(), o.redis)
	if err != nil {
		return nil, nil, err
	}
	client := redis.NewClient(opts)
	return featureflag.Redis(client, o.redisKey), func() { _ = client.Close() }, nil
}

// withSource calls f with the source, within --timeout.
func (o *options) withSource(cmd *cobra.Command, f func(ctx context.Context, source featureflag.Source) error) error {
	source, done, err := o.source(cmd)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(cmd.Context(), o.Timeout)
	defer cancel()
	return f(ctx, source)
}

// validateFlag validates a name and a percentage as featureflag.Set does, with a source that can't be written.
func validateFlag(name string, percent float64) error {
	_, err := featureflag.Set(context.Background(), featureflag.Static(0), name, percent)
	if errors.Is(err, featureflag.ErrReadOnly) {
		return nil
	}
	return cli.Usage(err)
}
