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

// KeyFunc returns the key that a request counts against, as the Throttler and its PolicyFor see it. An empty key and any error
// refuse the request, see [Config.OnError]. Prefix keys with their kind, as in "user:42": a client that can choose a user's name
// must not be able to choose another's address.
type KeyFunc func(r *http.Request) (string, error)

// ErrNoKey is the error of a KeyFunc for a request that has no key of its kind.
var ErrNoKey = errors.New("httplimit: the request has no key")

// errManyKeys is not an ErrNoKey, so that a client can't make FirstOf skip a key by sending two.
var errManyKeys = errors.New("httplimit: the request has more than one key of a kind")

// keyError marks the error of a KeyFunc.
type keyError struct{ err error }

func (e *keyError) Error() string { return e.err.Error() }

func (e *keyError) Unwrap() error { return e.err }

// Header returns the [HeaderKey] of a header field, such as an API key, with this secret, which all processes must share. A
// missing or empty field is an [ErrNoKey], which WriteError answers with 401. A request that sends the field twice is refused,
// because a later handler may use either. Header panics if the secret is neither nil nor of 16 bytes or more.
//
// A client chooses a value that is not authenticated, and with each new value gets a new quota. Wrap handlers behind the
// authentication, or limit the address as well, by [Config.Also].
func Header(name string, secret []byte) KeyFunc {
	kind := headerKind(name)
	name = http.CanonicalHeaderKey(name)
	secret = checkSecret(secret)
	return func(r *http.Request) (string, error) {
		switch values := r.Header[name]; {
		case len(values) > 1:
			return "", errManyKeys
		case len(values) == 0 || values[0] == "":
			return "", ErrNoKey
		default:
			return hashedKey(kind, values[0], secret), nil
		}
	}
}

// HeaderKey returns the key that [Header] gives a value, for Peek, Usage and Reset: "header:x-api-key:" and a hash of the value
// in base64, the HMAC-SHA256 of that prefix and the value. The value itself, often a secret, reaches no backend.
//
// With a nil secret the hash is the value's SHA-256. That is enough for random values of 128 bits or more, such as API keys and
// session tokens. Values that can be guessed need a secret, because a reader of the stored keys could try all values:
// Authorization: Basic, which holds a password, user names, account numbers, e-mail addresses, telephone numbers. A new secret
// makes new keys, with full quotas.
func HeaderKey(name, value string, secret []byte) string {
	return hashedKey(headerKind(name), value, checkSecret(secret))
}

func headerKind(name string) string { return "header:" + strings.ToLower(name) + ":" }

// hashedKey returns a kind and a hash of the value.
func hashedKey(kind, value string, secret []byte) string {
	var room [192]byte // for the usual names and values
	if secret == nil {
		sum := sha256.Sum256(append(room[:0], value...))
		return string(base64.RawURLEncoding.AppendEncode(append(room[:0], kind...), sum[:]))
	}
	mac := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(mac, kind) // so that equal values of two headers have different hashes
	_, _ = io.WriteString(mac, value)
	var sum [sha256.Size]byte
	return string(base64.RawURLEncoding.AppendEncode(append(room[:0], kind...), mac.Sum(sum[:0])))
}

// minSecret is the least size of a secret.
const minSecret = 16

// checkSecret refuses short secrets. An empty one that is not nil is most likely a variable that isn't set.
func checkSecret(secret []byte) []byte {
	if secret != nil && len(secret) < minSecret {
		panic("httplimit: the secret that keys are hashed with must have at least 16 bytes, or be nil")
	}
	return secret
}

// FirstOf returns the first key that the request has: after an [ErrNoKey] or an empty key it calls the next KeyFunc; any other
// error refuses the request. The client may choose which of them applies: with FirstOf(Header("X-Api-Key", nil), ClientAddr())
// invented API keys escape the limit on the address, unless they were refused before.
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
