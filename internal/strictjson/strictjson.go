// Package strictjson reads JSON objects and lists with all that encoding/json hides: members that are given twice, the case of
// names, and where a value is.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
)

// ErrNotObject is returned for valid JSON that is no object.
var ErrNotObject = errors.New("must be an object")

// ErrNotList is returned for valid JSON that is no list.
var ErrNotList = errors.New("must be a list")

// Member is a member of an object, or an element of a list, which has no name.
type Member struct {
	Name     string
	Value    json.RawMessage
	At       int  // offset of Value in the data
	Repeated bool // an earlier member has the same name
}

// Object returns the members of an object in order. Data must hold nothing else; an error of syntax is a *json.SyntaxError.
func Object(data []byte) ([]Member, error) {
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil { // a Decoder would not see what follows the object
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return nil, ErrNotObject
	}
	var members []Member
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var m Member
		if err := dec.Decode(&m.Value); err != nil {
			return nil, err
		}
		m.Name, _ = token.(string)
		m.At, m.Repeated = int(dec.InputOffset())-len(m.Value), seen[m.Name]
		seen[m.Name] = true
		members = append(members, m)
	}
	return members, nil
}

// List returns the elements of a list, as Object returns members.
func List(data []byte) ([]Member, error) {
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if token, err := dec.Token(); err != nil || token != json.Delim('[') {
		return nil, ErrNotList
	}
	var elements []Member
	for dec.More() {
		var m Member
		if err := dec.Decode(&m.Value); err != nil {
			return nil, err
		}
		m.At = int(dec.InputOffset()) - len(m.Value)
		elements = append(elements, m)
	}
	return elements, nil
}

// Line returns the line of an offset, which may lie beyond the end.
func Line(data []byte, at int) int { return 1 + bytes.Count(data[:min(at, len(data))], []byte("\n")) }
