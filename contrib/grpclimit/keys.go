package grpclimit

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// KeyFunc returns the key that a call counts against. An empty key and any error refuse the call: [ErrNoKey] with [Config.NoKey],
// a status error as it is, any other with codes.Internal. What is not to be limited is named by [Method.Exempt].
//
// The key is what the Throttler counts and what its PolicyFor sees. Let it say what kind it is, as "user:42" does: a
// client who may choose a user's name must not be able to choose another's address.
type KeyFunc func(ctx context.Context, c Call) (string, error)

// ErrNoKey says that a call has no key of the kind asked for.
var ErrNoKey = errors.New("grpclimit: the call has no key")

var (
	errManyKeys = errors.New("grpclimit: the call has more than one key of a kind") // no ErrNoKey, see FirstOf
	errNoPeer   = errors.New("grpclimit: the call has no peer")
)

// keyError marks what a KeyFunc returned.
type keyError struct{ err error }

func (e *keyError) Error() string { return e.err.Error() }

func (e *keyError) Unwrap() error { return e.err }

// PeerAddr is the address of the client: that of the connection, or behind trusted proxies the rightmost in the
// x-forwarded-for metadata that is none of theirs. It is httplimit.ClientAddr, whose documentation holds here too, and
// gives the same keys (httplimit.AddrKey), so that an address may share one quota over HTTP and gRPC. It panics if a
// prefix is invalid or trusts everybody. A server behind a Unix socket needs a KeyFunc of its own.
func PeerAddr(trusted ...netip.Prefix) KeyFunc {
	return PeerAddrOf(httplimit.AddrConfig{Trusted: trusted})
}

// PeerAddrOf is PeerAddr with a configuration, whose prefix of IPv6 addresses may be another than 64 bits, and whose Header may
// be another field of the metadata.
func PeerAddrOf(cfg httplimit.AddrConfig) KeyFunc {
	key := cfg.ClientAddr()
	name := strings.ToLower(cmp.Or(cfg.Header, "x-forwarded-for"))
	field := http.CanonicalHeaderKey(name)
	return func(ctx context.Context, _ Call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return "", errNoPeer
		}
		return key(&http.Request{
			RemoteAddr: p.Addr.String(),
			Header:     http.Header{field: metadata.ValueFromIncomingContext(ctx, name)},
		})
	}
}

// Metadata takes a value of the call's metadata, such as an API key, as httplimit.HeaderKey of that name and with this secret:
// only a hash of it reaches a backend. The documentation of httplimit.HeaderKey says which values need a secret; nil is for
// others, and Metadata panics if it has less than 16 bytes. Without the value, or if it is empty, there is an [ErrNoKey]; a
// call that has two is refused, for who says which of them is believed later?
//
// An unchecked value is the client's choice: with a new one comes a new quota. Put the Interceptor behind
// the authentication, or limit the address as well, by [Config.Also].
func Metadata(name string, secret []byte) KeyFunc {
	_ = httplimit.HeaderKey(name, "", secret) // panics now rather than in a call
	return func(ctx context.Context, _ Call) (string, error) {
		switch values := metadata.ValueFromIncomingContext(ctx, name); {
		case len(values) > 1:
			return "", errManyKeys
		case len(values) == 0 || values[0] == "":
			return "", ErrNoKey
		default:
			return httplimit.HeaderKey(name, values[0], secret), nil
		}
	}
}

// TLSIdentity takes whom the client's certificate names, as [TLSKey] with this secret: its SPIFFE ID, or else its subject
// ("CN=a,O=b"), or else its DNS names ("dns:a.example,b.example", sorted). A certificate that crypto/tls has not verified is
// none, and gives an [ErrNoKey]: the server needs tls.RequireAndVerifyClientCert or tls.VerifyClientCertIfGiven.
func TLSIdentity(secret []byte) KeyFunc {
	_ = TLSKey("", secret) // panics now rather than in a call
	return func(ctx context.Context, _ Call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if !ok {
			return "", errNoPeer
		}
		info, ok := p.AuthInfo.(credentials.TLSInfo)
		if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
			return "", ErrNoKey
		}
		identity := identityOf(info.State.VerifiedChains[0][0])
		if identity == "" {
			return "", ErrNoKey
		}
		return TLSKey(identity, secret), nil
	}
}

// identityOf gives no two kinds of names the same form.
func identityOf(leaf *x509.Certificate) string {
	if len(leaf.URIs) == 1 && leaf.URIs[0].Scheme == "spiffe" {
		return leaf.URIs[0].String()
	}
	if subject := leaf.Subject.String(); subject != "" || len(leaf.DNSNames) == 0 {
		return subject
	}
	return "dns:" + strings.Join(slices.Sorted(slices.Values(leaf.DNSNames)), ",")
}

// TLSKey is the key that [TLSIdentity] gives an identity, to look at its counts or reset them: "tls:" and a hash of the identity
// in base64, the HMAC-SHA256 of that prefix and the identity, or with a nil secret the identity's SHA-256. Names of services
// are no secret and need none; names of people can be guessed and do. It panics if the secret is neither nil nor of 16 bytes
// or more.
func TLSKey(identity string, secret []byte) string {
	const kind = "tls:"
	if secret == nil {
		sum := sha256.Sum256([]byte(identity))
		return kind + base64.RawURLEncoding.EncodeToString(sum[:])
	}
	if len(secret) < 16 {
		panic("grpclimit: the secret that keys are hashed with must have at least 16 bytes, or be nil")
	}
	mac := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(mac, kind+identity)
	return kind + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// FirstOf takes the first key that the call has: a KeyFunc that fails with [ErrNoKey], or gives an empty key, passes to
// the next; any other error refuses the call. Mind who chooses which of them applies: after FirstOf(Metadata("api-key", nil),
// PeerAddr()) made-up API keys escape the limit on the address, unless they were refused before.
func FirstOf(keys ...KeyFunc) KeyFunc {
	return func(ctx context.Context, c Call) (string, error) {
		for _, key := range keys {
			k, err := key(ctx, c)
			if err == nil && k != "" || err != nil && !errors.Is(err, ErrNoKey) {
				return k, err
			}
		}
		return "", ErrNoKey
	}
}
