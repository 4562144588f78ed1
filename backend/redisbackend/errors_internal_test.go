package redisbackend

import (
	"testing"

	"github.com/sluice-go/sluice/backend"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit/state"
)

// TestRedis6Errors: Redis 6 says before an error within a script where it was, and no more of what Lua itself fails at. These are
// replies of Redis 6.0.16.
func TestRedis6Errors(t *testing.T) {
	const wrapped = "ERR Error running script (call to f_0123): @user_script:9: "
	for text, want := range map[string]backend.Kind{
		wrapped + "@user_script: 9: -READONLY You can't write against a read only replica.":                backend.Unavailable,
		wrapped + "@user_script: 9: -OOM command not allowed when used memory > 'maxmemory'.":              backend.Unavailable,
		wrapped + "WRONGTYPE Operation against a key holding the wrong kind of value":                      backend.Misconfigured,
		wrapped + "@user_script: 9: The user executing the script can't run this command or subcommand":    backend.Misconfigured,
		wrapped + "@user_script: 9: Unknown Redis command called from Lua script":                          backend.Misconfigured,
		wrapped + "@user_script: 9: Lua script attempted to access a non local key in a cluster node":      backend.Misconfigured,
		wrapped + "@user_script: 9: Wrong number of args calling Redis command From Lua script":            backend.Misconfigured,
		wrapped + "user_script:9: attempt to compare nil with number":                                      backend.Corrupt,
		wrapped + "@user_script: 9: attempt to compare nil with number":                                    backend.Corrupt,
		"@user_script: 160: -READONLY You can't write against a read only replica.":                        backend.Unavailable,
		"@user_script: 422: The user executing the script can't run this command or subcommand":            backend.Misconfigured,
		"@user_script: 422: The user executing the script can't access at least one of the keys mentioned": backend.Misconfigured,
		"@user_script: 422: Unknown Redis command called from Lua script":                                  backend.Misconfigured,
		"CORRUPT state":                       backend.Corrupt,
		"READONLY You can't write":            backend.Unavailable,
		"NOPERM this user has no permissions": backend.Misconfigured,
	} {
		if kind, ran, _ := classify(redispipe.ReplyError(text)); kind != want || ran {
			t.Errorf("%q: %s, may have run: %t; want %s, false", text, kind, ran, want)
		}
	}
	for _, text := range []string{"upstream failure", "ERR Connection timed out", "no healthy upstream"} { // of proxies
		if kind, ran, _ := classify(redispipe.ReplyError(text)); kind != backend.Misconfigured || !ran {
			t.Errorf("%q: %s, may have run: %t; want %s, true", text, kind, ran, backend.Misconfigured)
		}
	}
	if kind, _, _ := classify(state.ErrCorruptState); kind != backend.Corrupt {
		t.Errorf("a corrupt state is %s", kind)
	}
}

func TestReplyWord(t *testing.T) {
	for want, err := range map[string]error{
		"READONLY": &backend.Error{Op: "take", Err: redispipe.ReplyError("READONLY You can't write against a read only replica.")},
		"OOM":      redispipe.ReplyError("ERR Error running script (call to f_0123): @user_script:9: -OOM command not allowed"),
		"ERR":      redispipe.ReplyError("ERR unknown command 'EVALSHA'"),
	} {
		if got := redispipe.Status(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	for _, err := range []error{nil, fielderrors.ErrNilContext, redispipe.ReplyError("user:42 is not a prefix"), redispipe.ReplyError("")} {
		if got := redispipe.Status(err); got != "" {
			t.Errorf("%v: %q, want none", err, got)
		}
	}
}
