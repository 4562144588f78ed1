package httplimit_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

func TestHeader(t *testing.T) {
	t.Parallel()
	key := httplimit.Header("x-api-key", nil)
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
		if test.ok && got != httplimit.HeaderKey("X-API-Key", secret, nil) {
			t.Errorf("%s: %q, want what HeaderKey gives", test.name, got)
		}
	}
	if got, want := httplimit.HeaderKey("X-Api-Key", "abc", nil), "header:x-api-key:ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0"; got != want {
		t.Errorf("HeaderKey = %q, want %q: all counts of all keys would start afresh", got, want)
	}
	if httplimit.HeaderKey("a", secret, nil) == httplimit.HeaderKey("b", secret, nil) ||
		httplimit.HeaderKey("a", "x", nil) == httplimit.HeaderKey("a", "y", nil) {
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
	key := httplimit.FirstOf(httplimit.Header("X-Api-Key", nil), httplimit.ClientAddr())
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
		if got := httplimit.HeaderKey("addr", value, nil); strings.HasPrefix(got, "addr:") {
			t.Errorf("HeaderKey = %q", got)
		}
	}
}

// Who reads the keys and can guess a value must not be able to confirm it. A plain SHA-256 lets him; an HMAC doesn't.
func TestHeaderKeyWithASecret(t *testing.T) {
	t.Parallel()
	const value = "Basic YWxpY2U6MTIzNDU2" // alice:123456
	mine, other := []byte("sixteen bytes or"), []byte("another sixteen!")
	guess := func(key string) bool {
		sum := sha256.Sum256([]byte(value))
		return strings.HasSuffix(key, base64.RawURLEncoding.EncodeToString(sum[:])) || key == httplimit.HeaderKey("Authorization", value, other)
	}
	if !guess(httplimit.HeaderKey("Authorization", value, nil)) {
		t.Error("a plain hash can't be guessed: the test shows nothing")
	}
	key, err := httplimit.Header("authorization", mine)(request("", http.Header{"Authorization": {value}}))
	if err != nil || guess(key) || key != httplimit.HeaderKey("Authorization", value, mine) {
		t.Errorf("%q, %v, want what HeaderKey gives, and nobody can guess", key, err)
	}
	_, a, _ := strings.Cut(strings.TrimPrefix(httplimit.HeaderKey("a", value, mine), "header:"), ":")
	_, b, _ := strings.Cut(strings.TrimPrefix(httplimit.HeaderKey("b", value, mine), "header:"), ":")
	if a == b {
		t.Error("equal values of two headers have equal hashes")
	}
	for _, short := range [][]byte{{}, []byte("fifteen bytes!!")} {
		for name, call := range map[string]func(){
			"Header":    func() { httplimit.Header("a", short) },
			"HeaderKey": func() { httplimit.HeaderKey("a", "b", short) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s takes a secret of %d bytes", name, len(short))
					}
				}()
				call()
			}()
		}
	}
}
