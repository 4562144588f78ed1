package traffic

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestRecorded(t *testing.T) {
	t.Parallel()
	const at = 1_700_000_000_000_000
	for name, test := range map[string]struct {
		text string
		want []Request
	}{
		"seconds":         {"1700000000\n1700000000.25\n", []Request{{at, "-", 1}, {at + 250_000, "-", 1}}},
		"milliseconds":    {"1700000000000\n1700000000250\n", []Request{{at, "-", 1}, {at + 250_000, "-", 1}}},
		"RFC 3339":        {"2023-11-14T22:13:20Z\n2023-11-14T23:13:20.000001+01:00", []Request{{at, "-", 1}, {at + 1, "-", 1}}},
		"key and cost":    {"1700000000,user:1,7\r\n1700000000, user:2 ,\r\n", []Request{{at, "user:1", 7}, {at, "user:2", 1}}},
		"quotes":          {"1700000000,\"a,\"\"b\"\"\",2\n", []Request{{at, `a,"b"`, 2}}},
		"header":          {"\ufeffMethod,Cost,Timestamp,Key\nGET,3,1700000000,k\n", []Request{{at, "k", 3}}},
		"header, no more": {"time\n1700000000,x,9\n", []Request{{at, "-", 1}}},
		"blank lines":     {"\n1700000000\n  \n", []Request{{at, "-", 1}}},
		"nothing":         {"", nil},
	} {
		var got []Request
		for a, err := range ReadCSV(strings.NewReader(test.text)) {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
			got = append(got, a)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// What is wrong is told with its line, and without what may be a key.
func TestRecordedRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"1700000000,s3cret\ns3cret,1700000000\n":            "line 2: time: must be RFC 3339",
		"s3cret,1700000000\n":                               "line 1: time: must be RFC 3339",
		"1700000000,s3cret,0\n":                             "line 1: cost: must be a whole number from 1",
		"1700000000,s3cret,1.5\n":                           "line 1: cost: must be",
		"1700000000,s3cret,9007199254740992\n":              "line 1: cost: must be",
		"1700000001,s3cret\n1700000000,s3cret\n":            "line 2: is earlier",
		"-1,s3cret\n":                                       "line 1: time",
		"NaN,s3cret\n":                                      "line 1: time",
		"1e300,s3cret\n":                                    "line 1: time",
		"1969-12-31T23:59:59Z,s3cret\n":                     "line 1: time",
		"1700000000,\"s3cret\n":                             "line 1: has quotes",
		"1700000000\n" + strings.Repeat("s3cret", maxLine):  "line 2: bufio.Scanner: token too long",
		"key,cost\ns3cret,1\n":                              "line 1: time",
		"key,time\ns3cret\n":                                "line 2: time",
		"1700000000\n1700000000,\"s3cret\",\"s3cret\",\"\n": "line 2: has quotes",
	} {
		var last error
		for _, err := range ReadCSV(strings.NewReader(text)) {
			last = err
		}
		if _, typed := errors.AsType[*lineError](last); !typed {
			t.Errorf("%.40q: %T", text, last)
		}
		if last == nil || !strings.HasPrefix(last.Error(), want) || strings.Contains(last.Error(), "s3cret") {
			t.Errorf("%.40q: %v, want %q", text, last, want)
		}
	}
}
