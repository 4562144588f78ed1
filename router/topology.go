package router

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/internal/smallfile"
	"github.com/sluice-go/sluice/internal/strictjson"
	"github.com/sluice-go/sluice/internal/yamljson"
)

// Topology is the groups that share the keys. All processes that share counts must use the same.
type Topology struct {
	// Epoch numbers the topologies that people publish, upwards, to 2^53-1. One with epoch 0 never changes and is not published.
	Epoch uint64 `json:"epoch"`

	// Seed changes the place of every key on the ring. A router inside a group of another router needs another seed.
	Seed uint64 `json:"seed,omitempty"`

	Groups []Group `json:"groups"`

	// Previous is the topology before this one. It stays here while windows that began under it can be alive: a process that starts
	// meanwhile gets a key's counts from there. One that saw the change by [Router.Update] knows it already.
	Previous *Topology `json:"previous,omitempty"`

	// Baseline says that every window which began under an earlier topology is over. A topology with an epoch above 1 has a
	// Previous or is a baseline: otherwise a process that starts with it would not know where keys have their counts.
	Baseline bool `json:"baseline,omitempty"`

	// Signature is over all of the above, see [Topology.Sign]. Processes with [Config.TopologyKeys] take over no published
	// topology without one.
	Signature []byte `json:"signature,omitempty"`
}

// Digest identifies the epoch and what decides which group owns a key under it: the seed, and the names and weights of the
// groups, whatever their order. Two topologies of one epoch must have the same digest. Addresses, replicas, sentinels and
// Previous may differ.
func (t Topology) Digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %d\n", t.Epoch, t.Seed)
	byName := func(a, b Group) int { return strings.Compare(a.Name, b.Name) }
	for _, g := range slices.SortedFunc(slices.Values(t.Groups), byName) {
		fmt.Fprintf(h, "%q %d\n", g.Name, max(g.Weight, 1))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Group is one primary and its replicas, the unit of sharding. It names exactly one of: Primary, with or without
// Replicas; Sentinels and Master; Cluster. (groupkind.go says what follows from each.)
type Group struct {
	// Name alone places the group on the ring: [A-Za-z0-9_.-]{1,64}. Addresses may change, a new name moves keys.
	Name string `json:"name"`

	// Weight is the group's share of the keys relative to the others. 0 means 1, the most is 1024, and 2048 for all
	// groups together.
	Weight int `json:"weight,omitempty"`

	Primary  string   `json:"primary,omitempty"`  // host:port
	Replicas []string `json:"replicas,omitempty"` // host:port

	// Sentinels are host:port each. The primary and its replicas are those that they name for Master, now and after each failover.
	// Some of them may be down.
	Sentinels []string `json:"sentinels,omitempty"`
	Master    string   `json:"master,omitempty"`

	// Cluster is some nodes of a Redis Cluster, host:port each, by which the others are found. The cluster is one group, which
	// distributes the group's keys among its own nodes. Another list under one name counts as the same cluster, so a cluster that
	// takes the place of another one needs a group of another name: otherwise the lack of counts goes unnoticed.
	Cluster []string `json:"cluster,omitempty"`
}

// clone returns a copy that shares nothing with the caller's value, for a router keeps topologies. It ends one topology after
// the chain is too long to be valid, so that it also ends for a chain that leads back to itself.
func (t Topology) clone() Topology {
	for p, depth := &t, 0; ; p, depth = p.Previous, depth+1 {
		p.Groups, p.Signature = slices.Clone(p.Groups), slices.Clone(p.Signature)
		for i := range p.Groups {
			g := &p.Groups[i]
			g.Replicas, g.Sentinels, g.Cluster = slices.Clone(g.Replicas), slices.Clone(g.Sentinels), slices.Clone(g.Cluster)
		}
		if p.Previous == nil {
			return t
		}
		if depth > maxPrevious {
			p.Previous = nil
			return t
		}
		previous := *p.Previous
		p.Previous = &previous
	}
}

const maxTopologyFile = 16 << 20 // with long names of 2048 groups, many times over

// LoadTopology reads a topology from a file of at most 16 MiB; see [ParseTopology]. The file is YAML if its name ends in .yaml
// or .yml, and JSON otherwise; YAML is checked just as strictly, and has no anchors or tags.
func LoadTopology(path string) (Topology, error) {
	data, err := readTopology(path)
	if err != nil {
		return Topology{}, err
	}
	t, err := parseTopologyFile(path, data)
	if err != nil {
		return Topology{}, fmt.Errorf("router: topology %s: %w", path, err)
	}
	return t, nil
}

func parseTopologyFile(path string, data []byte) (Topology, error) {
	if yamljson.IsYAML(path) {
		text, err := yamljson.Convert(data)
		if err != nil {
			return Topology{}, notATopology(data, "must be one YAML object", err)
		}
		data = text
	}
	return ParseTopology(data)
}

func readTopology(path string) ([]byte, error) {
	data, err := smallfile.Read(path, maxTopologyFile, func(field, value, bound string) error {
		return &ConfigError{Field: field, Value: value, Bound: bound}
	})
	if err != nil {
		return nil, fmt.Errorf("router: topology: %w", err) // it names the path
	}
	return data, nil
}

// ParseTopology reads a topology from JSON. It refuses an unknown, repeated or wrongly spelt member, and anything after the
// object, since a typing error in a topology moves keys. A member $schema of the whole, for editors, is left out. The topology
// that it returns is valid.
func ParseTopology(data []byte) (Topology, error) {
	var file topologyFile
	err := checkMembers(data, data, 0)
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		err = dec.Decode(&file)
	}
	if err != nil {
		return Topology{}, notATopology(data, "must be one JSON object", atLine(data, err))
	}
	if err := file.Validate(); err != nil {
		return Topology{}, err
	}
	return file.Topology, nil
}

// topologyFile is a topology as people write it.
type topologyFile struct {
	Schema string `json:"$schema"`
	Topology
}

func notATopology(data []byte, bound string, err error) error {
	return &ConfigError{Field: "topology", Value: fmt.Sprintf("%d bytes", len(data)), Bound: bound, Err: err}
}

// atLine adds the line to an error of encoding/json that has an offset.
func atLine(data []byte, err error) error {
	var at int64
	if bad, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = bad.Offset
	} else if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at = bad.Offset
	} else {
		return err
	}
	return fmt.Errorf("line %d: %w", strictjson.Line(data, int(at)), err)
}

// memberNames are the names of all members in the JSON of a topology.
var memberNames = append(membersOf[Topology](), membersOf[Group]()...)

// membersOf returns the names of a struct's fields in JSON.
func membersOf[T any]() (names []string) {
	for field := range reflect.TypeFor[T]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// checkMembers refuses what encoding/json accepts: a member that is given twice, of which the last would win, and names in another
// case or with letters like ſ. Part is the piece of data at an offset.
func checkMembers(data, part []byte, at int) error {
	whole := len(part) == len(data)
	if whole && !json.Valid(data) {
		return json.Unmarshal(data, new(any)) // says where
	}
	if list, err := strictjson.List(part); err == nil {
		for _, element := range list {
			if err := checkMembers(data, element.Value, at+element.At); err != nil {
				return err
			}
		}
		return nil
	}
	members, err := strictjson.Object(part)
	for _, m := range members {
		line := strictjson.Line(data, at+m.At)
		switch {
		case whole && m.Name == "$schema" && !m.Repeated:
			continue
		case !slices.Contains(memberNames, m.Name):
			return fmt.Errorf("line %d: unknown member %q: want %s", line, m.Name, strings.Join(memberNames, ", "))
		case m.Repeated:
			return fmt.Errorf("line %d: member %q is given twice", line, m.Name)
		}
		if err := checkMembers(data, m.Value, at+m.At); err != nil {
			return err
		}
	}
	if errors.Is(err, strictjson.ErrNotObject) {
		return nil // a number, a string or a boolean
	}
	return err
}
