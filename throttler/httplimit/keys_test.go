package httplimit_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

func TestHeader(t *testing.T) {
	t.Parallel()
	key := httplimit.Header("x-api-key")
	for _, test := range []struct {
		name   string
		values []string
		noKey  bool
		ok     bool
	}{
		{"one", []string{secret}, false, true},
		{"none", nil, true, false},
		{"empty", []string{""}, true, false},
		{"two", []string{secret, "other"}, false, false},
		{"the same twice", []string{secret, secret}, false, false},
		{"an empty one first", []string{"", secret}, false, false},
	} {
		got, err := key(request("", http.Header{"X-Api-Key": test.values}))
		if (err == nil) != test.ok || errors.Is(err, httplimit.ErrNoKey) != test.noKey {
			t.Errorf("%s: %q, %v", test.name, got, err)
		}
		if test.ok && got != httplimit.HeaderKey("X-API-Key", secret) {
			t.Errorf("%s: %q, want what HeaderKey gives", test.name, got)
		}
	}
	if got, want := httplimit.HeaderKey("X-Api-Key", "abc"), "header:x-api-key:ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0"; got != want {
		t.Errorf("HeaderKey = %q, want %q: all counts of all keys would start afresh", got, want)
	}
	if httplimit.HeaderKey("a", secret) == httplimit.HeaderKey("b", secret) ||
		httplimit.HeaderKey("a", "x") == httplimit.HeaderKey("a", "y") {
		t.Error("two headers or values have one key")
	}
}

func TestFirstOf(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	give := func(key string, err error) httplimit.KeyFunc {
		return func(*http.Request) (string, error) { return key, err }
	}
	for _, test := range []struct {
		name string
		keys []httplimit.KeyFunc
		want string
		is   error
	}{
		{"the first", []httplimit.KeyFunc{give("a", nil), give("b", nil)}, "a", nil},
		{"the second", []httplimit.KeyFunc{give("", httplimit.ErrNoKey), give("b", nil)}, "b", nil},
		{"an empty one is none", []httplimit.KeyFunc{give("", nil), give("b", nil)}, "b", nil},
		{"another error ends it", []httplimit.KeyFunc{give("", boom), give("b", nil)}, "", boom},
		{"none has one", []httplimit.KeyFunc{give("", httplimit.ErrNoKey), give("", nil)}, "", httplimit.ErrNoKey},
		{"nobody is asked", nil, "", httplimit.ErrNoKey},
	} {
		got, err := httplimit.FirstOf(test.keys...)(nil)
		if got != test.want || !errors.Is(err, test.is) {
			t.Errorf("%s: %q, %v, want %q, %v", test.name, got, err, test.want, test.is)
		}
	}

	// Two API keys don't lead to the address.
	key := httplimit.FirstOf(httplimit.Header("X-Api-Key"), httplimit.ClientAddr())
	if got, err := key(request("203.0.113.7:80", http.Header{"X-Api-Key": {"a", "b"}})); err == nil {
		t.Errorf("two API keys: %q, want an error", got)
	}
	if got, err := key(request("203.0.113.7:80", nil)); err != nil || got != "addr:203.0.113.7" {
		t.Errorf("no API key: %q, %v, want the address", got, err)
	}
}

// A client who chooses a header's value can't choose the key of an address.
func TestKindsDoNotCollide(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"addr:203.0.113.7", "203.0.113.7"} {
		if got := httplimit.HeaderKey("addr", value); strings.HasPrefix(got, "addr:") {
			t.Errorf("HeaderKey = %q", got)
		}
	}
}
