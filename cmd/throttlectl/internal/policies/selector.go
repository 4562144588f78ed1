package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler/registry"
)

// Selector is the flags that select a policy.
type Selector struct {
	Name   string
	Limits []string
	File   string

	registry *registry.Registry // of File, once loaded
}

const Help = `The policy must be the one that the applications use: its name tells where a key's counts are, and a limit's
algorithm, window, precision and alignment tell which of them are its own.

  --policy api --limit 100/1m --limit daily=1000/24h
  --policies policies.json               the one that the file of a registry.Registry gives the key
  --policies policies.json --policy pro  the one of that name in the file

  100/1m             fixed window, 100 a minute from the first request
  100/1m@aligned     fixed window, at multiples of a minute; @staggered: shifted by a hash of the key
  240/1h~1m          sliding window, in sub-buckets of a minute
  count/1h~1m        counter, in sub-buckets of a minute: denies nothing
  10/1s+20           token bucket, 10 a second, burst 20
  daily=1000/24h     any of them with a name`

func (p *Selector) Register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.Name, "policy", "", "`name` of the policy; empty for one that has none")
	cmd.Flags().StringArrayVar(&p.Limits, "limit", nil, "a `limit` of the policy, such as 100/1m; as often as it has limits")
	cmd.Flags().StringVar(&p.File, "policies", "", "`path` of the file of policies that applications use, in place of --limit")
	cli.NoFiles(cmd, "policy")
	cli.NoFiles(cmd, "limit")
	if err := cmd.MarkFlagFilename("policies", cli.DocumentExtensions...); err != nil {
		panic(err) // there is no such flag
	}
}

// Policy is the selected policy, for a key; empty if the command has none. Errors are cli.UsageErrors, except those of a file.
func (p *Selector) Policy(key string) (limit.Policy, error) {
	switch {
	case p.File != "" && len(p.Limits) > 0:
		return limit.Policy{}, cli.Usage(errors.New("--limit doesn't go with --policies: the file has the limits"))
	case p.File != "" && p.Name == "" && key == "":
		return limit.Policy{}, cli.Usage(errors.New("--policies needs --policy: which of them is meant"))
	case p.File != "":
		return p.fromFile(key)
	case len(p.Limits) == 0:
		return limit.Policy{}, cli.Usage(errors.New("--limit or --policies is needed: " +
			"100/1m, 240/1h~1m or 10/1s+20, once for each limit of the policy, or the file of policies"))
	}
	limits, err := ParseLimits(p.Limits)
	policy := limit.Policy{Name: p.Name, Limits: limits}
	if err == nil {
		err = policy.Validate()
	}
	return policy, cli.Usage(err)
}

// fromFile is the policy of the name, or else of the key. The file is read once, so that all calls agree.
func (p *Selector) fromFile(key string) (limit.Policy, error) {
	if p.registry == nil {
		r, err := registry.Open(p.File, registry.Config{Refresh: -1})
		if err != nil {
			return limit.Policy{}, err
		}
		p.registry = r
	}
	if p.Name == "" {
		policy, err := p.registry.View().Policy(context.Background(), key)
		if err != nil {
			return limit.Policy{}, err
		}
		return *policy, nil
	}
	if its := p.registry.Policy(p.Name); its != nil {
		return *its, nil
	}
	var names []string
	for _, its := range p.registry.Policies() {
		names = append(names, its.Name)
	}
	return limit.Policy{}, cli.WithGuess(fmt.Errorf("%s: no policy %q: there are %s", p.File, p.Name, listNames(names)), p.Name, names)
}

// listNames lists the first ten names.
func listNames(all []string) string {
	const most = 10
	names := slices.Clone(all[:min(most, len(all))])
	if more := len(all) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// ParseLimits parses the values of --limit. The error names all that are wrong.
func ParseLimits(texts []string) (limits []limit.Limit, err error) {
	for _, text := range texts {
		l, bad := limit.Parse(text)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("--limit: %w", bad))
			continue
		}
		limits = append(limits, l)
	}
	return limits, err
}
