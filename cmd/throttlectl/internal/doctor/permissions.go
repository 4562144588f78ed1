package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
)

// nodeCommands are the commands that Sluice sends, as redisbackend.Redis documents. %s is the prefix of keys.
var nodeCommands = []string{
	"get %sdoctor", "mget %sdoctor", "set %sdoctor 1", "evalsha 0 0", "eval 0 0", "time", "info",
}

// clusterCommands are those that it sends to a node of a Redis Cluster; go-redis sends the last five.
var clusterCommands = []string{
	"get %sdoctor", "set %sdoctor 1", "evalsha 0 0", "eval 0 0", "time", "info",
	"ping", "cluster slots", "command", "readonly", "asking",
}

// requiredCommands are the commands that Sluice sends to this server.
func (e *serverReport) requiredCommands() []string {
	if e.info["cluster_enabled"] == "1" {
		return clusterCommands
	}
	return nodeCommands
}

// aclRule is the rule of ACL SETUSER that permits a line.
func aclRule(line string) string {
	return "+" + strings.Join(strings.Fields(line)[:commandWords(line)], "|")
}

// dangerousCommands are commands that no application needs on a server that keeps its limits.
var dangerousCommands = []string{
	"flushall", "flushdb", "config set maxmemory 1", "shutdown", "replicaof no one", "debug sleep 0", "keys *",
	"acl setuser x", "module list",
}

// aclScript returns for each line of ARGV 1 if the user of the connection may send it, 0 if not, -1 if the server has no such
// command. It sends none of them, and needs Redis 7.0 and no permission beyond EVAL.
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

// permissions is what the user of the connection may do.
type permissions struct {
	missing   []string // commands that Sluice needs
	dangerous []string // commands that it must not have
	foreign   bool     // whether it may use keys without the prefix
	unknown   bool     // the server is older than 7.0
	err       error
}

func readPermissions(ctx context.Context, client *redis.Client, prefix string, needs []string) (r permissions) {
	var lines []any
	for _, line := range needs {
		lines = append(lines, strings.ReplaceAll(line, "%s", prefix))
	}
	for _, line := range dangerousCommands {
		lines = append(lines, line)
	}
	lines = append(lines, "get !"+prefix) // no prefix has an exclamation mark
	answers, err := client.Eval(ctx, aclScript, nil, lines...).Int64Slice()
	switch {
	case err != nil && strings.Contains(err.Error(), "OLD cannot tell"):
		return permissions{unknown: true}
	case err != nil:
		return permissions{err: err}
	case len(answers) != len(lines):
		return permissions{err: errors.New("the answer is not that of a Redis server")}
	}
	for i, line := range needs {
		if answers[i] == 0 {
			r.missing = append(r.missing, aclRule(line))
		}
	}
	for i, line := range dangerousCommands {
		if answers[len(needs)+i] == 1 {
			r.dangerous = append(r.dangerous, strings.ToUpper(strings.Join(strings.Fields(line)[:commandWords(line)], " ")))
		}
	}
	r.foreign = answers[len(answers)-1] == 1
	return r
}

// commandWords is how many words of a line name the command.
func commandWords(line string) int {
	for _, container := range []string{"config", "debug", "acl", "module", "cluster"} {
		if strings.HasPrefix(line, container+" ") {
			return 2
		}
	}
	return 1
}

// checkPermissions checks a replica as a primary, which it may become, and less severely.
func (e *serverReport) checkPermissions() finding.List {
	f := checkPermissions(e.permissions, e.Options.Username, e.Prefix, e.requiredCommands(), e.Options.Password != "")
	for i := range f {
		if one := &f[i]; e.replica() && one.Severity == finding.Critical {
			one.Severity, one.What = finding.Warning, "after a failover to it: "+one.What
		}
	}
	return f
}

func checkPermissions(r permissions, user, prefix string, needs []string, password bool) (f finding.List) {
	if user == "" {
		user = "default"
	}
	grant := "ACL SETUSER NAME on >PASSWORD resetkeys ~" + prefix + "* -@all"
	for _, line := range needs {
		grant += " " + aclRule(line)
	}
	switch {
	case r.unknown:
		f.Add(finding.Info, "acl", "it is older than Redis 7.0 and can't tell what user "+user+" may do",
			"Compare ACL LIST with: "+grant)
		return f
	case r.err != nil && redis.HasErrorPrefix(r.err, "NOPERM"):
		f.Add(finding.Critical, "acl", "user "+user+" may not EVAL: no request can be decided", "Grant it what Sluice needs: "+grant)
		return f
	case r.err != nil:
		f.Add(finding.Warning, "acl", "what user "+user+" may do can't be asked: "+r.err.Error(), "")
		return f
	}
	if len(r.missing) > 0 {
		f.Add(finding.Critical, "acl", fmt.Sprintf("user %s lacks %s on keys %s*", user, strings.Join(r.missing, " "), prefix),
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
		f.Add(finding.Warning, "acl", what, "Give the applications a user of their own, and ask with it: "+grant)
	}
	return f
}
