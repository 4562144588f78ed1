package featureflag

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-go/sluice/internal/strictjson"
)

// quote bounds what an error repeats of its input.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

// parseFlags reads a file of flags. It is strict where encoding/json is not: names of fields are case-sensitive, unknown
// and repeated ones are rejected. One flag that is wrong makes the whole file wrong: an edit that went astray once may
// have done so twice. The error joins an [*Error] for each thing wrong, or tells the line where it stops to be JSON.
func parseFlags(data []byte) (map[string]Value, error) {
	flags := make(map[string]Value)
	err := parseObject("flags", data, func(name string, raw json.RawMessage) error {
		v, err := parseValue(name, raw)
		flags[name] = v
		return errors.Join(checkName(name), err)
	})
	if err != nil {
		return nil, err
	}
	return flags, nil
}

// parseValue reads one flag: {"percent": 12.5, "version": 7, "killed": false}, the last optional.
func parseValue(name string, data []byte) (Value, error) {
	var v Value
	var percent, version bool // whether they were there
	what := quote(name)
	err := parseObject(what, data, func(field string, raw json.RawMessage) error {
		var err error
		at := what + ": " + field
		switch field {
		case "percent":
			percent = true
			// Of the values of JSON only numbers are taken for one by ParseFloat.
			if v.Percent, err = strconv.ParseFloat(string(raw), 64); err != nil {
				return invalid(at, quote(string(raw)), "must be a number from 0 to 100")
			}
			v.Percent += 0 // -0 becomes 0
			return checkPercent(at, v.Percent)
		case "version":
			version = true
			v.Version, err = strconv.ParseUint(string(raw), 10, 64)
			if err != nil || v.Version < 1 || v.Version > maxGeneration {
				return invalid(at, quote(string(raw)), "must be a whole number from 1 to %d", uint64(maxGeneration))
			}
		case "killed":
			v.Killed = string(raw) == "true"
			if !v.Killed && string(raw) != "false" {
				return invalid(at, quote(string(raw)), "must be true or false")
			}
		default:
			return invalid(what, quote(field), "unknown: want percent, version and killed")
		}
		return nil
	})
	if err == nil && !percent {
		err = invalid(what+": percent", "missing", "must be there")
	}
	if err == nil && !version {
		err = invalid(what+": version", "missing", "must be there")
	}
	return v, err
}

// parseObject calls field for every field of a JSON object, and joins the errors.
func parseObject(what string, data []byte, field func(name string, raw json.RawMessage) error) error {
	members, err := strictjson.Object(data)
	if at, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("line %d: %w", strictjson.Line(data, int(at.Offset)), err)
	}
	if err != nil {
		return invalid(what, quote(string(bytes.TrimSpace(data))), "%v", err)
	}
	var errs []error
	for _, m := range members {
		if m.Repeated {
			errs = append(errs, invalid(what, quote(m.Name), "is there twice"))
		}
		errs = append(errs, field(m.Name, m.Value))
	}
	return errors.Join(errs...)
}

// formatFlags is the inverse of parseFlags: one flag a line, sorted by name, for the people who read it.
func formatFlags(flags map[string]Value) []byte {
	b := []byte("{")
	for i, name := range slices.Sorted(maps.Keys(flags)) {
		if i > 0 {
			b = append(b, ',')
		}
		v := flags[name]
		b = fmt.Appendf(b, "\n  %q: {\"percent\": %v, \"version\": %d, \"killed\": %t}", name, v.Percent, v.Version, v.Killed)
	}
	return append(b, "\n}\n"...)
}
