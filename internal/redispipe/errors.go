package redispipe

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/limit/state"
)

// ReplyError is an error reply of a server.
type ReplyError string

func (e ReplyError) Error() string { return string(e) }

// RedisError implements [redis.Error].
func (ReplyError) RedisError() {}

// IsReply reports whether an error is a reply of the server.
func IsReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// IsUnavailable reports whether an error reply is one that another try may not get.
func IsUnavailable(err error) bool { return beginsWith(cause(err), unavailable[:]) }

// IsCorrupt reports whether an error reply says that what is stored at the key is no state.
func IsCorrupt(err error) bool {
	err = cause(err)
	return redis.HasErrorPrefix(err, "CORRUPT") || redis.HasErrorPrefix(err, "user_script") // Lua failed on what it read
}

// BeforeWrite reports whether an error reply makes it certain that nothing was written. Redis refuses a script before
// it runs, and the scripts validate before their only write. A proxy may replace a reply that it has lost by an error of
// its own, so an error that isn't known as one of Redis says nothing.
func BeforeWrite(err error) bool {
	err = cause(err)
	return beginsWith(err, unavailable[:]) || beginsWith(err, refused[:])
}

// The beginnings of error replies. Redis 7 appends the script to them.
var (
	unavailable = [...]string{
		"LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "OOM", "MISCONF",
		"UNKILLABLE", "max number of clients",
	}
	// Redis, or a script, gives these before anything is written.
	refused = [...]string{
		"NOAUTH", "NOPERM", "WRONGPASS", "DENIED", "NOPROTO", "NOSCRIPT", "WRONGTYPE", "CROSSSLOT", "EXECABORT",
		"FLOOR", "SEALED", "CORRUPT", "user_script",
		"unknown command", "Unknown Redis command", "Unknown command", "This Redis command is not allowed",
		"This command is not allowed", "The user executing the script", "ACL failure in script",
		"Script attempted", "Lua script attempted", "Script killed", "Error compiling script", "Can not execute", "Can't execute",
		"operation not permitted",
		"Client sent AUTH", "AUTH ", "invalid password", "invalid DB index", "DB index", "SELECT ", // from setting a connection up
		"wrong number of arguments", "Wrong number of args", "Number of keys", "Protocol error", "syntax error",
	}
)

func beginsWith(err error, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return redis.HasErrorPrefix(err, p) })
}

// concernsPolicy reports whether an error reply may hold for all keys of a policy, as for want of rights, rather than for
// what is stored at one key.
func concernsPolicy(err error) bool {
	return !IsCorrupt(err) && Redirect(err) == nil && !redis.HasErrorPrefix(cause(err), "WRONGTYPE")
}

// Redirect is the answer of a script to a request that acts under another version of a move than the key; nil for any other
// error.
func Redirect(err error) error {
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

// Status is the first word of an error reply, such as "READONLY". It is empty for errors that are no reply, and for replies
// whose first word isn't of that form: it could be anything.
func Status(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	return status(cause(reply).Error())
}

// status is the first word of a text, if that is of the form of a status.
func status(text string) string {
	word, _, _ := strings.Cut(text, " ")
	if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return ""
	}
	return word
}

// cause is the error of a command within a script. Redis 6 says before it where in the script it was, some of them twice, and some
// with a dash: "ERR Error running script (call to f_...): @user_script:9: @user_script: 9: -OOM command not allowed ...". What a
// script returns of redis.pcall begins with the place. If Lua itself failed, what follows is "user_script:9: attempt to ...".
func cause(err error) error {
	const place = "@user_script:"
	if !redis.HasErrorPrefix(err, "Error running script") && !redis.HasErrorPrefix(err, place) {
		return err
	}
	text := err.Error()
	_, inner, _ := strings.Cut(text[strings.LastIndex(text, place)+len(place):], ": ")
	inner, dashed := strings.CutPrefix(strings.TrimSpace(inner), "-")
	reply := ReplyError(inner)
	if dashed || status(inner) != "" || beginsWith(reply, unavailable[:]) || beginsWith(reply, refused[:]) {
		return reply
	}
	return ReplyError("user_script: " + text)
}
