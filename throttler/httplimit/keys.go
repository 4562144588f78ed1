package httplimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
)

// KeyFunc names whom a request counts against. An empty key and any error refuse the request, see
// [Config.OnError]: what is not to be limited is named by [Config.Skip].
//
// The key is what the Throttler counts and what its PolicyFor sees. Let it say what kind it is, as "user:42" does:
// a client who may choose a user's name must not be able to choose another's address.
type KeyFunc func(r *http.Request) (string, error)

// ErrNoKey says that a request has no key of the kind asked for.
var ErrNoKey = errors.New("httplimit: the request has no key")

// errManyKeys is not an ErrNoKey, so that FirstOf can't be led past a key by sending two.
var errManyKeys = errors.New("httplimit: the request has more than one key of a kind")

// keyError marks what a KeyFunc returned.
type keyError struct{ err error }

func (e *keyError) Error() string { return e.err.Error() }

func (e *keyError) Unwrap() error { return e.err }

// Header takes the value of a header field, such as an API key, as [HeaderKey] with this secret, which all processes must share.
// Without the field, or if it is empty, there is an [ErrNoKey]; a request that sends it twice is refused, for who says which of
// them is believed later? It panics if the secret is neither nil nor of 16 bytes or more.
//
// A value that nobody has checked is the client's choice: with a new one comes a new quota. Wrap what is behind the
// authentication, or limit the address as well, by [Config.Also].
func Header(name string, secret []byte) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	secret = checkSecret(secret)
	return func(r *http.Request) (string, error) {
		switch values := r.Header[name]; {
		case len(values) > 1:
			return "", errManyKeys
		case len(values) == 0 || values[0] == "":
			return "", ErrNoKey
		default:
			return HeaderKey(name, values[0], secret), nil
		}
	}
}

// HeaderKey is the key that [Header] gives a value, to look at its counts or reset them: "header:x-api-key:" and a hash of the
// value in base64, the HMAC-SHA256 of that prefix and the value. The value itself, often a secret, reaches no backend.
//
// With a nil secret the hash is the value's SHA-256. That is enough for random values of 128 bits or more, such as API keys
// and session tokens. Whatever can be guessed needs a secret, for who reads the keys in a server can try all values against
// a plain hash: Authorization: Basic, which holds a password, user names, account numbers, e-mail addresses, telephone
// numbers. A new secret means new keys, with full quotas.
func HeaderKey(name, value string, secret []byte) string {
	kind := "header:" + strings.ToLower(name) + ":"
	return kind + hashed(kind, value, checkSecret(secret))
}

func hashed(kind, value string, secret []byte) string {
	if len(secret) == 0 {
		sum := sha256.Sum256([]byte(value))
		return base64.RawURLEncoding.EncodeToString(sum[:])
	}
	mac := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(mac, kind) // so that equal values of two headers can't be told
	_, _ = io.WriteString(mac, value)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// checkSecret refuses what could be guessed. An empty secret that is not nil is most likely a variable that isn't set.
func checkSecret(secret []byte) []byte {
	if secret != nil && len(secret) < 16 {
		panic("httplimit: the secret that keys are hashed with must have at least 16 bytes, or be nil")
	}
	return secret
}

// FirstOf takes the first key that the request has: a KeyFunc that fails with [ErrNoKey], or gives an empty key,
// passes to the next; any other error refuses the request. Mind who chooses which of them applies: after
// FirstOf(Header("X-Api-Key", nil), ClientAddr()) made-up API keys escape the limit on the address, unless they were
// refused before.
func FirstOf(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		for _, key := range keys {
			k, err := key(r)
			if err == nil && k != "" || err != nil && !errors.Is(err, ErrNoKey) {
				return k, err
			}
		}
		return "", ErrNoKey
	}
}
