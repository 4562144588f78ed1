package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/limit"
)

// policyFlags say which policy is meant, for commands that count by one.
type policyFlags struct {
	name   string
	limits []string
}

const policyHelp = `The policy must be the one that the applications use: its name tells where a key's counts are, and a limit's
algorithm, window, precision and alignment tell which of them are its own.

  --policy api --limit 100/1m --limit daily=1000/24h

  100/1m             fixed window, 100 a minute from the first request
  100/1m@aligned     fixed window, at multiples of a minute; @staggered: shifted by a hash of the key
  240/1h~1m          sliding window, in sub-buckets of a minute
  10/1s+20           token bucket, 10 a second, burst 20
  daily=1000/24h     any of them with a name`

func (p *policyFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.name, "policy", "", "`name` of the policy; empty for one that has none")
	cmd.Flags().StringArrayVar(&p.limits, "limit", nil, "a `limit` of the policy, such as 100/1m; as often as it has limits")
	noFiles(cmd, "policy")
	noFiles(cmd, "limit")
}

// policy reads the flags. Its errors are the caller's own.
func (p *policyFlags) policy() (limit.Policy, error) {
	if len(p.limits) == 0 {
		return limit.Policy{}, usage(errors.New("--limit is needed: 100/1m, 240/1h~1m or 10/1s+20, once for each limit of the policy"))
	}
	limits, err := parseLimits(p.limits)
	policy := limit.Policy{Name: p.name, Limits: limits}
	if err == nil {
		err = policy.Validate()
	}
	return policy, usage(err)
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
