package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler/registry"
)

// policyFlags say which policy is meant, for commands that count by one.
type policyFlags struct {
	name   string
	limits []string
	file   string

	registry *registry.Registry // of the file, once it is read
}

const policyHelp = `The policy must be the one that the applications use: its name tells where a key's counts are, and a limit's
algorithm, window, precision and alignment tell which of them are its own.

  --policy api --limit 100/1m --limit daily=1000/24h
  --policies policies.json               the one that the file of a registry.Registry gives the key
  --policies policies.json --policy pro  the one of that name in the file

  100/1m             fixed window, 100 a minute from the first request
  100/1m@aligned     fixed window, at multiples of a minute; @staggered: shifted by a hash of the key
  240/1h~1m          sliding window, in sub-buckets of a minute
  10/1s+20           token bucket, 10 a second, burst 20
  daily=1000/24h     any of them with a name`

func (p *policyFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.name, "policy", "", "`name` of the policy; empty for one that has none")
	cmd.Flags().StringArrayVar(&p.limits, "limit", nil, "a `limit` of the policy, such as 100/1m; as often as it has limits")
	cmd.Flags().StringVar(&p.file, "policies", "", "`path` of the JSON file of policies that applications use, in place of --limit")
	noFiles(cmd, "policy")
	noFiles(cmd, "limit")
	if err := cmd.MarkFlagFilename("policies", "json"); err != nil {
		panic(err) // there is no such flag
	}
}

// policy reads the flags, for a key, or an empty one where no key is meant. Its errors are the caller's own, but for those of
// a file.
func (p *policyFlags) policy(key string) (limit.Policy, error) {
	switch {
	case p.file != "" && len(p.limits) > 0:
		return limit.Policy{}, usage(errors.New("--limit doesn't go with --policies: the file has the limits"))
	case p.file != "" && p.name == "" && key == "":
		return limit.Policy{}, usage(errors.New("--policies needs --policy: which of them is meant"))
	case p.file != "":
		return p.ofFile(key)
	case len(p.limits) == 0:
		return limit.Policy{}, usage(errors.New("--limit or --policies is needed: " +
			"100/1m, 240/1h~1m or 10/1s+20, once for each limit of the policy, or the file of policies"))
	}
	limits, err := parseLimits(p.limits)
	policy := limit.Policy{Name: p.name, Limits: limits}
	if err == nil {
		err = policy.Validate()
	}
	return policy, usage(err)
}

// ofFile is the policy of a name, or else of a key. The file is read once: a command that asks twice gets the same answer.
func (p *policyFlags) ofFile(key string) (limit.Policy, error) {
	if p.registry == nil {
		r, err := registry.Open(p.file, registry.Config{Refresh: -1})
		if err != nil {
			return limit.Policy{}, err
		}
		p.registry = r
	}
	if p.name == "" {
		its, err := p.registry.View().Policy(context.Background(), key)
		if err != nil {
			return limit.Policy{}, err
		}
		return *its, nil
	}
	if its := p.registry.Policy(p.name); its != nil {
		return *its, nil
	}
	return limit.Policy{}, fmt.Errorf("%s: no policy %q: there are %s", p.file, p.name, nameList(p.registry.Policies()))
}

// nameList names policies, as many as a line is good for.
func nameList(all []*limit.Policy) string {
	const most = 10
	var names []string
	for _, p := range all[:min(most, len(all))] {
		names = append(names, p.Name)
	}
	if more := len(all) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// parseLimits reads the values of --limit, and tells of all that can't be read.
func parseLimits(texts []string) (limits []limit.Limit, err error) {
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

// noFiles keeps a shell from offering files as the value of a flag.
func noFiles(cmd *cobra.Command, flag string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions); err != nil {
		panic(err) // there is no such flag
	}
}
