package registry

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/prefixtable"
	"github.com/sluice-go/sluice/internal/strictjson"
	"github.com/sluice-go/sluice/limit"
)

// parse reads the JSON text of a document, which is the document itself unless that is YAML. Policies that are unchanged since
// before keep their address; before may be nil.
func parse(data, text []byte, before *view) (*view, error) {
	d := document{data: text, policies: map[string][]limit.Limit{}, keys: map[string]string{}, shadow: map[string]string{}}
	d.read()
	if err := d.problems(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	v := &view{
		info:   Info{Version: d.version, Digest: hex.EncodeToString(sum[:]), Loaded: time.Now()},
		byName: make(map[string]*limit.Policy, len(d.policies)),
		allow:  prefixtable.NewSet(d.allow),
		deny:   prefixtable.NewSet(d.deny),
	}
	for name, limits := range d.policies {
		v.byName[name] = &limit.Policy{Name: name, Limits: limits}
		if before == nil {
			continue
		}
		if old := before.byName[name]; old != nil && slices.Equal(old.Limits, limits) {
			v.byName[name] = old
		}
	}
	v.fallback = v.byName[d.fallback]
	v.shadows, v.keys = v.resolve(d.shadow), prefixtable.New(v.resolve(d.keys))
	return v, nil
}

// resolve replaces names of policies by the policies.
func (v *view) resolve(names map[string]string) map[string]*limit.Policy {
	found := make(map[string]*limit.Policy, len(names))
	for entry, name := range names {
		found[entry] = v.byName[name]
	}
	return found
}

// document is a document while it is parsed. It is decoded piece by piece, because encoding/json accepts what is a mistake
// here: a member that is given twice, or in another case.
type document struct {
	data       []byte
	errs       []error
	more       int // problems beyond maxProblems
	references []reference

	version     string
	policies    map[string][]limit.Limit
	fallback    string
	keys        map[string]string
	allow, deny []string
	shadow      map[string]string
}

const maxProblems = 100

// reference is the name of a policy that must be defined.
type reference struct {
	at          int
	where, name string
}

// value is a piece of the document, and its offset.
type value struct {
	raw json.RawMessage
	at  int
}

func (d *document) read() {
	if at := invalidUTF8(d.data); at >= 0 { // or encoding/json would put other bytes into a key
		d.refuse(at, "document", strconv.Itoa(len(d.data))+" bytes", "must be UTF-8: keys of other bytes can't be in it")
		return
	}
	var all json.RawMessage
	if err := json.Unmarshal(d.data, &all); err != nil {
		at := len(d.data)
		if bad, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = int(bad.Offset)
		}
		d.refuse(at, "document", strconv.Itoa(len(d.data))+" bytes", "must be one JSON object: "+err.Error())
		return
	}
	hasDefault := false
	whole := value{raw: all, at: bytes.Index(d.data, all)}
	d.object(whole, "document", func(name string, v value) {
		switch name {
		case "$schema":
			d.text(v, name, new(string))
		case "version":
			d.text(v, name, &d.version)
		case "policies":
			d.object(v, name, d.policy)
		case "default":
			hasDefault = true
			if d.text(v, name, &d.fallback) {
				d.references = append(d.references, reference{v.at, name, d.fallback})
			}
		case "keys":
			d.object(v, name, d.assign)
		case "allow":
			d.list(v, name, &d.allow)
		case "deny":
			d.list(v, name, &d.deny)
		case "shadow":
			d.object(v, name, d.assignShadow)
		default:
			value, bound := "unknown", "must be version, policies, default, keys, allow, deny or shadow"
			if meant := nearest(name, documentMembers); meant != "" {
				value, bound = strconv.Quote(name), bound+": is it "+meant+"?"
			}
			d.refuse(v.at, "member", value, bound)
		}
	})
	if !hasDefault {
		d.refuse(whole.at, "default", "none", "must be the name of a policy")
	}
	for _, m := range d.references {
		if _, ok := d.policies[m.name]; !ok {
			d.refuse(m.at, m.where, shown(m.name), "must be the name of a policy")
		}
	}
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(data []byte) int {
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

// policy reads a policy.
func (d *document) policy(name string, v value) {
	p := limit.Policy{Name: name}
	var texts []string
	before := len(d.errs)
	d.list(v, "policies", &texts)
	for i, text := range texts {
		l, err := limit.Parse(text)
		for _, e := range fielderrors.All(err) {
			what := e.Value
			if !limitLike.MatchString(text) {
				what = "no limit"
			}
			d.refuse(v.at, fmt.Sprintf("policy %s: limit %d: %s", shown(name), i+1, e.Field), what, e.Bound)
		}
		if err == nil {
			p.Limits = append(p.Limits, l)
		}
	}
	if !policyName.MatchString(name) {
		d.refuse(v.at, "policy name", shown(name), "must match [a-z0-9_-]{1,32}")
	}
	if len(d.errs) == before {
		for _, e := range fielderrors.All(p.Validate()) {
			if e.Field == "limits" {
				e.Field = fmt.Sprintf("policy %s: limits", shown(name))
			}
			d.refuse(v.at, e.Field, e.Value, e.Bound)
		}
	}
	d.policies[name] = p.Limits
}

// assign reads the policy of a key or prefix.
func (d *document) assign(key string, v value) {
	var name string
	if !d.text(v, "keys", &name) {
		return
	}
	if key == "" || key == "*" {
		d.refuse(v.at, "keys", strconv.Quote(key), "must be a key or prefix*: default is the policy of all others")
	}
	d.references = append(d.references, reference{v.at, "keys", name})
	d.keys[key] = name
}

// assignShadow reads the shadow of a policy.
func (d *document) assignShadow(name string, v value) {
	var its string
	if !d.text(v, "shadow", &its) {
		return
	}
	if name == its {
		d.refuse(v.at, "shadow", shown(its), "must be another policy than the one enforced")
	}
	d.references = append(d.references, reference{v.at, "shadow", name}, reference{v.at, "shadow", its})
	d.shadow[name] = its
}

// object calls member for each member of an object.
func (d *document) object(v value, where string, member func(name string, v value)) {
	if v.raw[0] != '{' {
		d.refuse(v.at, where, kind(v), "must be an object")
		return
	}
	members, _ := strictjson.Object(v.raw) // the document is valid JSON
	for _, m := range members {
		inner := value{raw: m.Value, at: v.at + m.At}
		if m.Repeated {
			d.refuse(inner.at, where, "a member", "is given twice")
			continue
		}
		member(m.Name, inner)
	}
}

// list reads a list of texts, which must not be empty.
func (d *document) list(v value, where string, into *[]string) {
	var raw []json.RawMessage
	if v.raw[0] != '[' || json.Unmarshal(v.raw, &raw) != nil {
		d.refuse(v.at, where, kind(v), "must be a list of texts")
		return
	}
	for i := range raw {
		entry := fmt.Sprintf("%s: entry %d", where, i+1)
		var text string
		if !d.text(value{raw[i], v.at}, entry, &text) {
			continue
		}
		if text == "" {
			d.refuse(v.at, entry, `""`, "must not be empty")
			continue
		}
		*into = append(*into, text)
	}
}

func (d *document) text(v value, where string, into *string) bool {
	if v.raw[0] != '"' || json.Unmarshal(v.raw, into) != nil {
		d.refuse(v.at, where, kind(v), "must be a text")
		return false
	}
	return true
}

// refuse records a problem at an offset of the document.
func (d *document) refuse(at int, field, value, bound string) {
	if len(d.errs) == maxProblems {
		d.more++
		return
	}
	d.errs = append(d.errs, &limit.Error{Field: fmt.Sprintf("line %d: %s", strictjson.Line(d.data, at), field), Value: value, Bound: bound})
}

func (d *document) problems() error {
	if d.more > 0 {
		d.errs = append(d.errs, fmt.Errorf("%d more problems", d.more))
	}
	return errors.Join(d.errs...)
}

// kind describes a value without showing it: it may be a key.
func kind(v value) string {
	switch v.raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a text"
	case 'n':
		return "null"
	case 't', 'f':
		return "a truth value"
	}
	return "a number"
}

// limitLike matches mistyped limits, which errors show, and hardly ever a misplaced key, which errors must not show.
var limitLike = regexp.MustCompile(
	`^([A-Za-z0-9_-]{1,32} ?= ?)?[+-]?[0-9][0-9_,]*(\.[0-9]+)?([kKmM]|e[0-9]+)? ?(/|per ) ?[0-9A-Za-z@+~. -]*$`)

var documentMembers = []string{"version", "policies", "default", "keys", "allow", "deny", "shadow"}

// nearest returns the word within two typing errors of a name, whatever its case, or "". Errors show only such names: others
// may be misplaced keys.
func nearest(name string, words []string) string {
	if len(name) > 16 {
		return ""
	}
	best, found := 3, ""
	for _, word := range words {
		if n := edits(strings.ToLower(name), word); n < best {
			best, found = n, word
		}
	}
	return found
}

// edits is the Levenshtein distance of a and b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := diagonal
			if a[i] != b[j] {
				next = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

var policyName = regexp.MustCompile(`^[a-z0-9_-]{1,32}$`)

// nameLike matches names of policies, also mistyped ones.
var nameLike = regexp.MustCompile(`^[A-Za-z0-9_ -]{1,32}$`)

// shown quotes a policy's name, unless it may be a misplaced key.
func shown(name string) string {
	if nameLike.MatchString(name) {
		return strconv.Quote(name)
	}
	return "no name"
}
