package redisbackend

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"

	"github.com/sluice-go/sluice/backend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit/state"
)

// classify is for [outcome.Wrap].
func classify(err error) (kind backend.Kind, mayHaveRun bool, shown error) {
	shown = err
	if before, _, quoted := strings.Cut(err.Error(), ", with args"); quoted { // of an unknown command, the key among them
		shown = redispipe.ReplyError(before)
	}
	var dial *net.OpError
	before := callguard.IsUnsent(err)
	switch {
	case before && errors.Is(err, context.Canceled):
		return backend.Interrupted, false, shown
	case isUntrusted(err):
		return backend.Misconfigured, false, shown
	case redispipe.IsReply(err):
		return kindOfReply(err), !before && !redispipe.BeforeWrite(err), shown
	case errors.Is(err, redispipe.ErrQueueFull):
		return backend.Unavailable, false, backend.ErrOverloaded
	case before:
		return backend.Unavailable, false, shown
	case errors.Is(err, state.ErrCorruptState):
		return backend.Corrupt, true, shown
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return backend.Unavailable, false, shown
	case errors.As(err, &dial) && dial.Op == "dial":
		return backend.Unavailable, false, shown
	case errors.Is(err, context.Canceled):
		return backend.Interrupted, true, shown
	}
	return backend.Unavailable, true, shown // lost connections and timeouts
}

// kindOfReply is what an error reply means. Replies that are not known as passing are answers that another try won't change.
func kindOfReply(err error) backend.Kind {
	switch {
	case redispipe.IsUnavailable(err):
		return backend.Unavailable
	case redispipe.IsCorrupt(err):
		return backend.Corrupt
	}
	return backend.Misconfigured
}

// isUntrusted reports whether TLS failed in a way that only a person can fix: a certificate that one side doesn't accept, or
// no protocol that both speak. Whichever side noticed, no command was read.
func isUntrusted(err error) bool {
	if _, refused := errors.AsType[*tls.CertificateVerificationError](err); refused {
		return true
	}
	if _, notTLS := errors.AsType[tls.RecordHeaderError](err); notTLS {
		return true
	}
	remote, ok := errors.AsType[*net.OpError](err)
	if !ok || remote.Op != "remote error" { // an alert, whose type crypto/tls keeps to itself
		return false
	}
	alert := remote.Err.Error()
	for _, says := range [...]string{
		"certificate", "handshake failure", "protocol version", "access denied", "unrecognized name", "insufficient security level",
	} {
		if strings.Contains(alert, says) {
			return true
		}
	}
	return false
}
