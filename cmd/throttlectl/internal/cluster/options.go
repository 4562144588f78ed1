package cluster

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/internal/redisopts"
)

// Options parses the URL of --redis, or its host and port alone. Errors leave the URL out: it may hold a password.
func (p *PasswordFlags) Options(ctx context.Context, url string) (*redis.Options, error) {
	if url != "" && !strings.Contains(url, "://") {
		url = "redis://" + url
	}
	opts, err := redis.ParseURL(url)
	if err != nil { // err may have a part of a password that isn't escaped
		return nil, cli.Usage(errors.New("--redis: not a URL of a Redis server: want host:port or redis://user@host:port/db; " +
			"a password in it has %2F, %3F and %23 for / ? and #"))
	}
	switch {
	case opts.Password == "":
		if opts.Password, err = p.read(ctx); err != nil {
			return nil, err
		}
	case p.Given():
		return nil, cli.Usage(errors.New("--redis: the URL has a password, and another is given"))
	}
	opts.DialTimeout = p.Timeout // last: the URL may have parameters of its own
	redisopts.Harden(opts, p.Timeout)
	return opts, nil
}

// WithAddress is how to log in at an address.
func WithAddress(template redis.Options, address string) *redis.Options {
	template.Addr = address
	if template.TLSConfig != nil {
		template.TLSConfig = template.TLSConfig.Clone() // the client writes the server's name into it
	}
	return &template
}
