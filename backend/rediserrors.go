package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/limit/state"
)

// classifyRedis is for [WrapError].
func classifyRedis(err error) (kind Kind, mayHaveRun bool, shown error) {
	shown = err
	if before, _, quoted := strings.Cut(err.Error(), ", with args"); quoted { // of an unknown command, the key among them
		shown = commandError(before)
	}
	var dial *net.OpError
	before := callguard.IsUnsent(err)
	switch {
	case before && errors.Is(err, context.Canceled):
		return Interrupted, false, shown
	case isUntrusted(err):
		return Misconfigured, false, shown
	case isReply(err):
		return kindOfReply(err), !before && !beforeWrite(err), shown
	case before:
		return Unavailable, false, shown
	case errors.Is(err, state.ErrCorruptState):
		return Corrupt, true, shown
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return Unavailable, false, shown
	case errors.As(err, &dial) && dial.Op == "dial":
		return Unavailable, false, shown
	case errors.Is(err, context.Canceled):
		return Interrupted, true, shown
	}
	return Unavailable, true, shown // lost connections and timeouts
}

// concernsPolicy reports whether an error reply may be that of all keys of a policy, as for want of rights, not of what is stored at
// one key.
func concernsPolicy(err error) bool {
	return kindOfReply(err) != Corrupt && refusal(err) == nil && !redis.HasErrorPrefix(cause(err), "WRONGTYPE")
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

// refusal is what a script answers to a request that acts under another version of a move than the key; else nil.
func refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case redis.HasErrorPrefix(err, "FLOOR"):
		return state.ErrFloorWanted
	case redis.HasErrorPrefix(err, "SEALED"):
		words := strings.Fields(err.Error()) // Redis 7 appends the script
		if len(words) < 3 {
			return nil
		}
		mover := state.Migration
		if words[1] == state.Topology.FenceID() {
			mover = state.Topology
		}
		if version, failed := strconv.ParseInt(words[2], 10, 64); failed == nil {
			return &state.MovedError{Mover: mover, Version: version}
		}
	}
	return nil
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// kindOfReply matches error replies by their first word: Redis 7 appends the script to them. What is not named here
// is an answer that trying again won't change.
func kindOfReply(err error) Kind {
	err = cause(err)
	if beginsWith(err, notNow[:]) {
		return Unavailable
	}
	if redis.HasErrorPrefix(err, "CORRUPT") || redis.HasErrorPrefix(err, "user_script") { // Lua fell over what it read
		return Corrupt
	}
	return Misconfigured
}

// notNow is what error replies begin with that another try may not get.
var notNow = [...]string{
	"LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "OOM", "MISCONF",
	"UNKILLABLE", "max number of clients",
}

// notEver is what other error replies begin with that Redis, or a script of ours, gives before anything is written.
var notEver = [...]string{
	"NOAUTH", "NOPERM", "WRONGPASS", "DENIED", "NOPROTO", "NOSCRIPT", "WRONGTYPE", "CROSSSLOT", "EXECABORT",
	"FLOOR", "SEALED", "CORRUPT", "user_script", // Lua fell over what it read
	"unknown command", "Unknown Redis command", "This Redis command is not allowed", "The user executing the script",
	"Script attempted", "Script killed", "Error compiling script", "Can not execute", "Can't execute", "operation not permitted",
	"Client sent AUTH", "AUTH ", "invalid password", "invalid DB index", "DB index", "SELECT ", // from setting a connection up
	"wrong number of arguments", "Number of keys", "Protocol error", "syntax error",
}

// beforeWrite reports whether an error reply makes it certain that the command wrote nothing. Redis refuses a script before it runs, and
// the scripts validate before their only write. A proxy in between may give an error of its own when it has lost the reply, so
// that what isn't known as one of Redis's says nothing.
func beforeWrite(err error) bool {
	err = cause(err)
	return beginsWith(err, notNow[:]) || beginsWith(err, notEver[:])
}

func beginsWith(err error, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return redis.HasErrorPrefix(err, p) })
}

// replyWord is the first word of an error reply: what Redis calls its prefix. It is empty for what is no reply, and for one
// whose first word is none of these: it could be anything.
func replyWord(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	word, _, _ := strings.Cut(cause(reply).Error(), " ")
	if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return ""
	}
	return word
}

// cause is the error of a command within a script: Redis 6 wraps it, "ERR Error running script (call to f_...):
// @user_script:9: -READONLY You can't write against a read only replica."
func cause(err error) error {
	if !redis.HasErrorPrefix(err, "Error running script") {
		return err
	}
	if _, inner, ok := strings.Cut(err.Error(), ": -"); ok {
		return commandError(inner)
	}
	return commandError("user_script: " + err.Error()) // Lua itself failed
}

// scriptError is the error of a key that scripts.Takes answers with. Redis 6 says where in the script it was.
func scriptError(text string) error {
	if _, inner, ok := strings.Cut(text, ": -"); ok {
		text = inner
	}
	return commandError(strings.TrimSpace(text))
}

// commandError is an error reply.
type commandError string

func (e commandError) Error() string { return string(e) }
func (commandError) RedisError()     {}
