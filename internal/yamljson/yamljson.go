// Package yamljson turns a YAML document into JSON that says the same on the same lines, so that one strict reader serves both: it
// sees members that are given twice, unknown ones, and the line of each value.
//
// Only what JSON has is accepted: one document of objects with texts as names, lists, texts, numbers, true, false and null.
// Anchors, aliases, merges and tags are refused. A number keeps its digits, and a date is a text, as it was written.
package yamljson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Error is why a document is refused. It holds nothing of the document, which may have keys in it.
type Error struct {
	Line    int // 0 if it is not known
	Problem string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Problem
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Problem)
}

// IsYAML reports whether a file is YAML by its name: .yaml or .yml.
func IsYAML(path string) bool {
	ext := strings.ToLower(filepath.Ext(path))
	return ext == ".yaml" || ext == ".yml"
}

// Convert returns a YAML document as JSON. Every error is an *Error.
func Convert(data []byte) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		return nil, refusal(err)
	}
	w := writer{line: 1}
	if len(document.Content) != 1 {
		return nil, &Error{Problem: "must be one document"}
	}
	if err := w.value(document.Content[0]); err != nil {
		return nil, err
	}
	return w.json.Bytes(), nil
}

// refusal leaves out what the library repeats of the document: the names of anchors.
func refusal(err error) error {
	bad, ok := errors.AsType[*yaml.LoadError](err)
	switch {
	case !ok || strings.Contains(bad.Message, "document") && bad.Mark.Line == 0: // none, or several
		return &Error{Problem: "must be one document"}
	case strings.Contains(bad.Message, "anchor"):
		return &Error{Line: bad.Mark.Line, Problem: noAlias}
	}
	return &Error{Line: bad.Mark.Line, Problem: bad.Message}
}

const noAlias = "anchors and aliases are not supported: quote a text that begins with & or *"

type writer struct {
	json bytes.Buffer
	line int // of the end of json
}

func (w *writer) value(n *yaml.Node) error {
	for ; w.line < n.Line; w.line++ {
		w.json.WriteByte('\n')
	}
	refuse := func(problem string) error { return &Error{Line: n.Line, Problem: problem} }
	tag := n.ShortTag()
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return refuse(noAlias)
	case n.Style&yaml.TaggedStyle != 0 && tag != "!!str":
		return refuse("tags are not supported")
	case n.Kind == yaml.MappingNode:
		return w.object(n)
	case n.Kind == yaml.SequenceNode:
		return w.list(n)
	case tag == "!!null":
		w.json.WriteString("null")
	case tag == "!!bool":
		w.json.WriteString(strings.ToLower(n.Value))
	case tag == "!!int" || tag == "!!float":
		if !json.Valid([]byte(n.Value)) {
			return refuse("a number must be written as in JSON; quote it if it is a text")
		}
		w.json.WriteString(n.Value)
	default:
		w.text(n.Value)
	}
	return nil
}

func (w *writer) object(n *yaml.Node) error {
	w.json.WriteByte('{')
	for i := 0; i < len(n.Content); i += 2 {
		if i > 0 {
			w.json.WriteByte(',')
		}
		name := n.Content[i]
		switch {
		case name.Kind == yaml.AliasNode || name.Anchor != "":
			return &Error{Line: name.Line, Problem: noAlias}
		case name.Kind != yaml.ScalarNode || name.Style&yaml.TaggedStyle != 0:
			return &Error{Line: name.Line, Problem: "the name of a member must be a text"}
		case name.ShortTag() == "!!merge":
			return &Error{Line: name.Line, Problem: "merges are not supported: quote << if it is a text"}
		}
		w.text(name.Value)
		w.json.WriteByte(':')
		if err := w.value(n.Content[i+1]); err != nil {
			return err
		}
	}
	w.json.WriteByte('}')
	return nil
}

func (w *writer) list(n *yaml.Node) error {
	w.json.WriteByte('[')
	for i, element := range n.Content {
		if i > 0 {
			w.json.WriteByte(',')
		}
		if err := w.value(element); err != nil {
			return err
		}
	}
	w.json.WriteByte(']')
	return nil
}

func (w *writer) text(s string) {
	quoted, _ := json.Marshal(s) // of a string there is no error
	w.json.Write(quoted)
}
