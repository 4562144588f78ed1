// Package policies has the command that checks files of policies, and the flags by which other commands select a policy.
package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/internal/yamljson"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler/registry"
)

const checkHelp = `Validate a file of policies, in JSON or YAML, as applications read it with registry.Open, and print what it holds:
before it is rolled out, in CI say. Keys are counted and not shown. The digest is that of sha256sum, by which applications tell
what they have in force (throttlectl top).

The exit code is 3 if the file would be refused, or has an entry without effect, and 1 if it can't be read. An entry without
effect is one of allow that deny denies, or an address that isn't written as httplimit.ClientAddr writes the key of a client.

  KEYS, PREFIXES  how many have this policy
  SHADOW          the policy that is asked, too, and enforced on nobody`

// New makes the policies command.
func New(f *cli.Factory) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "policies",
		Short: "Check a file of named policies",
	},
		newCheck(f),
	)
}

func newCheck(f *cli.Factory) *cobra.Command {
	return &cobra.Command{
		Use:               "check FILE",
		Short:             "Validate a file of policies, and print what it holds",
		Long:              checkHelp,
		Args:              cli.Operands("FILE"),
		ValidArgsFunction: cli.DocumentFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := check(args[0])
			if err != nil {
				return err
			}
			if err := f.Print(c); err != nil {
				return err
			}
			return c.Findings.Err(finding.Warning)
		},
	}
}

// checkResult is what a file of policies holds; only findings if it is refused.
type checkResult struct {
	Digest   string        `json:"digest,omitempty"`
	Version  string        `json:"version,omitempty"`
	Default  string        `json:"default,omitempty"`
	Policies []namedPolicy `json:"policies"`
	Allow    int           `json:"allow"` // entries
	Deny     int           `json:"deny"`
	Findings finding.List  `json:"findings"`
}

type namedPolicy struct {
	Policy   string        `json:"policy"`
	Limits   []limit.Limit `json:"limits"`
	Keys     int           `json:"keys"`
	Prefixes int           `json:"prefixes"`
	Shadow   string        `json:"shadow,omitempty"`
}

// document is the part of a document that registry.Registry doesn't export.
type document struct {
	Default string            `json:"default"`
	Keys    map[string]string `json:"keys"`
	Allow   []string          `json:"allow"`
	Deny    []string          `json:"deny"`
	Shadow  map[string]string `json:"shadow"`
}

func check(path string) (*checkResult, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // a pipe can be read once only
		return nil, fmt.Errorf("%s: must be a regular file, and is %s", path, info.Mode().Type())
	}
	r, err := registry.Open(path, registry.Config{Refresh: -1})
	if _, refused := errors.AsType[*limit.Error](err); refused {
		return refusedPolicies(err), nil
	}
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	now := r.Info()
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != now.Digest {
		return nil, fmt.Errorf("%s: changed while it was read", path)
	}
	if yamljson.IsYAML(path) {
		if data, err = yamljson.Convert(data); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	c := &checkResult{Digest: now.Digest, Version: now.Version, Default: d.Default, Allow: len(d.Allow), Deny: len(d.Deny)}
	whole := maps.Clone(d.Keys)
	maps.DeleteFunc(whole, func(key, _ string) bool { return strings.HasSuffix(key, "*") })
	keys, all := countByValue(whole), countByValue(d.Keys)
	for _, p := range r.Policies() {
		c.Policies = append(c.Policies, namedPolicy{p.Name, p.Limits, keys[p.Name], all[p.Name] - keys[p.Name], d.Shadow[p.Name]})
	}
	c.Findings = d.check(c.Policies).Sorted()
	return c, nil
}

// countByValue counts the entries of each policy.
func countByValue(entries map[string]string) map[string]int {
	counts := make(map[string]int)
	for _, name := range entries {
		counts[name]++
	}
	return counts
}

// refusedPolicies reports why a file is refused.
func refusedPolicies(err error) *checkResult {
	c := &checkResult{Policies: []namedPolicy{}}
	for _, one := range joinedErrors(err) {
		c.Findings.Add(finding.Critical, "document", one.Error(), "")
	}
	c.Findings = c.Findings.Sorted()
	return c
}

// joinedErrors are the errors joined in err.
func joinedErrors(err error) []error {
	switch e := err.(type) {
	case *limit.Error:
		return []error{e}
	case interface{ Unwrap() []error }:
		var all []error
		for _, inner := range e.Unwrap() {
			all = append(all, joinedErrors(inner)...)
		}
		return all
	}
	if inner := errors.Unwrap(err); inner != nil {
		return joinedErrors(inner)
	}
	return []error{err}
}

// check finds entries without effect. It names no key.
func (d *document) check(all []namedPolicy) (f finding.List) {
	f = d.checkLists()
	shadows := countByValue(d.Shadow)
	for _, p := range all {
		if p.Keys+p.Prefixes+shadows[p.Policy] == 0 && p.Policy != d.Default {
			f.Add(finding.Info, "unused", fmt.Sprintf("no key has policy %s by this file", p.Policy), "")
		}
	}
	return f
}

func (c *checkResult) Text(w io.Writer) {
	if c.Digest != "" {
		fmt.Fprintf(w, "version %s, digest %s\n\n", cli.Cell(c.Version), c.Digest)
		fmt.Fprint(w, "POLICY\tLIMITS\tKEYS\tPREFIXES\tSHADOW\n")
		for _, p := range c.Policies {
			name := p.Policy
			if name == c.Default {
				name += " (default)"
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", name, cli.Limits(p.Limits), p.Keys, p.Prefixes, cli.Cell(p.Shadow))
		}
		fmt.Fprintf(w, "\nallowed: %d entries, denied: %d entries\n", c.Allow, c.Deny)
		if len(c.Findings) > 0 {
			fmt.Fprintln(w)
		}
	}
	c.Findings.Text(w)
}
