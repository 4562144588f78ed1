package top

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/internal/strictjson"
	"github.com/sluice-go/sluice/internal/yamljson"
	"github.com/sluice-go/sluice/throttler/insight"
)

// namesOf reads a file that gives keys names, and returns them by what stands for the keys: the keys as they are, and as
// insight.Recorder.KeyHash hashes them with the applications' HashKey, if the file of that is given.
func namesOf(path, hashKeyFile string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	byKey, err := readNames(path)
	if err != nil || hashKeyFile == "" {
		return byKey, err
	}
	text, err := os.ReadFile(hashKeyFile)
	if err != nil {
		return nil, err
	}
	hashes, err := insight.New(insight.Config{HashKey: []byte(strings.TrimRight(string(text), "\r\n"))})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hashKeyFile, err)
	}
	names := make(map[string]string, 2*len(byKey))
	for key, name := range byKey {
		names[key], names[hashes.KeyHash(key)] = name, name
	}
	return names, nil
}

// name gives the keys that are shown their names.
func (v *view) name(names map[string]string) {
	add := func(key string) {
		if name := names[key]; name != "" {
			if v.Names == nil {
				v.Names = map[string]string{}
			}
			v.Names[key] = name
		}
	}
	for _, k := range v.TopDenied {
		add(k.Key)
	}
	for _, k := range v.NearLimits {
		add(k.Key)
	}
}

// shown is the name of a key, or the key.
func (p *parts) shown(key string) string { return cli.Cell(cmp.Or(p.Names[key], key)) }

// readNames reads a JSON or YAML object of keys and their names. Errors hold no key.
func readNames(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if yamljson.IsYAML(path) {
		if data, err = yamljson.Convert(data); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	members, err := strictjson.Object(data)
	if err != nil {
		return nil, fmt.Errorf("%s: must be an object of keys and their names: %w", path, err)
	}
	names := make(map[string]string, len(members))
	for _, m := range members {
		var name string
		switch err := json.Unmarshal(m.Value, &name); {
		case m.Repeated:
			return nil, fmt.Errorf("%s: line %d: the key is given twice", path, strictjson.Line(data, m.At))
		case err != nil || m.Value[0] != '"':
			return nil, fmt.Errorf("%s: line %d: the name of a key must be a text", path, strictjson.Line(data, m.At))
		}
		names[m.Name] = name
	}
	return names, nil
}
