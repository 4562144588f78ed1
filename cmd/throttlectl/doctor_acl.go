package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// needs are the commands that Sluice sends, with a key where they take one: see redisbackend.Redis. %s is the prefix of keys.
var needs = []string{
	"get %sdoctor", "mget %sdoctor", "set %sdoctor 1", "evalsha 0 0", "eval 0 0", "time", "info",
}

// clusterNeeds are those that it sends to a node of a Redis Cluster. The last five are how go-redis finds nodes and keys.
var clusterNeeds = []string{
	"get %sdoctor", "set %sdoctor 1", "evalsha 0 0", "eval 0 0", "time", "info",
	"ping", "cluster slots", "command", "readonly", "asking",
}

// needs are the commands that Sluice sends to this server.
func (e *examined) needs() []string {
	if e.info["cluster_enabled"] == "1" {
		return clusterNeeds
	}
	return needs
}

// right is what ACL SETUSER calls the permission to send a line.
func right(line string) string {
	return "+" + strings.Join(strings.Fields(line)[:words(line)], "|")
}

// dangers are commands that no application should be able to send to a server that keeps its limits.
var dangers = []string{
	"flushall", "flushdb", "config set maxmemory 1", "shutdown", "replicaof no one", "debug sleep 0", "keys *",
	"acl setuser x", "module list",
}

// aclScript asks the server which commands the user of this connection may send, and sends none of them: 1, 0, or -1 for a
// command that the server doesn't have. Redis 7.0 can tell a script that, without any right beyond EVAL.
const aclScript = `
if not redis.acl_check_cmd then return redis.error_reply('OLD cannot tell') end
local answers = {}
for i, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  local ok, may = pcall(redis.acl_check_cmd, unpack(words))
  answers[i] = not ok and -1 or may and 1 or 0
end
return answers`

// rights is what the user that the tool logs in with may do.
type rights struct {
	missing   []string // commands that Sluice needs
	dangerous []string // commands that it must not have
	foreign   bool     // whether it may touch keys of others
	unknown   bool     // whether the server is too old to tell
	err       error    // why nothing is known
}

func askRights(ctx context.Context, client *redis.Client, prefix string, needs []string) (r rights) {
	var lines []any
	for _, line := range needs {
		lines = append(lines, strings.ReplaceAll(line, "%s", prefix))
	}
	for _, line := range dangers {
		lines = append(lines, line)
	}
	lines = append(lines, "get !"+prefix) // no prefix has an exclamation mark
	answers, err := client.Eval(ctx, aclScript, nil, lines...).Int64Slice()
	switch {
	case err != nil && strings.Contains(err.Error(), "OLD cannot tell"):
		return rights{unknown: true}
	case err != nil:
		return rights{err: err}
	case len(answers) != len(lines):
		return rights{err: errors.New("the answer is not that of a Redis server")}
	}
	for i, line := range needs {
		if answers[i] == 0 {
			r.missing = append(r.missing, right(line))
		}
	}
	for i, line := range dangers {
		if answers[len(needs)+i] == 1 {
			r.dangerous = append(r.dangerous, strings.ToUpper(strings.Join(strings.Fields(line)[:words(line)], " ")))
		}
	}
	r.foreign = answers[len(answers)-1] == 1
	return r
}

// words is how many words of a line are the name of the command.
func words(line string) int {
	for _, container := range []string{"config", "debug", "acl", "module", "cluster"} {
		if strings.HasPrefix(line, container+" ") {
			return 2
		}
	}
	return 1
}

// judgeRights looks at a replica's rights as at a primary's, which it may become; until then it need not have them all.
func (e *examined) judgeRights() findings {
	f := judgeRights(e.rights, e.options.Username, e.prefix, e.needs(), e.options.Password != "")
	for i := range f {
		if one := &f[i]; e.replica() && one.Severity == critical {
			one.Severity, one.What = warning, "after a failover to it: "+one.What
		}
	}
	return f
}

func judgeRights(r rights, user, prefix string, needs []string, password bool) (f findings) {
	if user == "" {
		user = "default"
	}
	grant := "ACL SETUSER NAME on >PASSWORD resetkeys ~" + prefix + "* -@all"
	for _, line := range needs {
		grant += " " + right(line)
	}
	switch {
	case r.unknown:
		f.add(info, "acl", "it is older than Redis 7.0 and can't tell what user "+user+" may do",
			"Compare ACL LIST with: "+grant)
		return f
	case r.err != nil && redis.HasErrorPrefix(r.err, "NOPERM"):
		f.add(critical, "acl", "user "+user+" may not EVAL: no request can be decided", "Grant it what Sluice needs: "+grant)
		return f
	case r.err != nil:
		f.add(warning, "acl", "what user "+user+" may do can't be asked: "+r.err.Error(), "")
		return f
	}
	if len(r.missing) > 0 {
		f.add(critical, "acl", fmt.Sprintf("user %s lacks %s on keys %s*", user, strings.Join(r.missing, " "), prefix),
			"Grant it what Sluice needs: "+grant)
	}
	if len(r.dangerous) > 0 || r.foreign {
		what := "user " + user + " may do more than Sluice needs:"
		if len(r.dangerous) > 0 {
			what += " " + strings.Join(r.dangerous, ", ")
		}
		if r.foreign {
			what += " (all keys, not only " + prefix + "*)"
		}
		if !password {
			what += ", and there is no password"
		}
		f.add(warning, "acl", what, "Give the applications a user of their own, and ask with it: "+grant)
	}
	return f
}
