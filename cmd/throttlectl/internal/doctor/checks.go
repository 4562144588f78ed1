package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
)

// checkNames are what --ignore takes.
var checkNames = []string{"reach", finding.WritesCheck, "version", "memory", "replication", "role", "clock", "acl", "persistence", "clients", "sentinel", "cluster"}

// check checks a server by itself.
func (e *serverReport) check(maxLag time.Duration) (f finding.List) {
	if e.err != nil {
		return e.checkReach()
	}
	if e.Role == cluster.RoleSentinel {
		return nil
	}
	f = append(f, e.checkWrites()...)
	f = append(f, checkVersion(e.info)...)
	f = append(f, checkMemory(e.info)...)
	f = append(f, e.checkReplication(maxLag)...)
	f = append(f, e.checkRole()...)
	f = append(f, e.checkPermissions()...)
	f = append(f, e.checkPersistence()...)
	return append(f, checkClients(e.info)...)
}

// checkMemory checks what a full server does. Counts have a TTL, so volatile policies evict them first, and a key whose count is
// evicted has its full quota again.
func checkMemory(said map[string]string) (f finding.List) {
	const fix = "CONFIG SET maxmemory-policy noeviction, and in its configuration file: a full server then refuses, " +
		"which the failure policy handles."
	policy, limit, used := said["maxmemory_policy"], infoInt(said, "maxmemory"), infoInt(said, "used_memory")
	switch {
	case policy == "noeviction" || policy == "":
	case limit == 0:
		f.Add(finding.Warning,
			"memory", fmt.Sprintf("maxmemory-policy is %s: once there is a maxmemory, it evicts counts, "+
				"and keys get their quota back", policy), fix)
	case strings.HasPrefix(policy, "volatile-"):
		f.Add(finding.Critical,
			"memory", fmt.Sprintf("maxmemory-policy is %s: when it is full it evicts counts first, "+
				"and keys get their quota back", policy), fix)
	default:
		f.Add(finding.Critical,
			"memory", fmt.Sprintf("maxmemory-policy is %s: when it is full it evicts counts among others, "+
				"and keys get their quota back", policy), fix)
	}
	if n := infoInt(said, "evicted_keys"); n > 0 {
		f.AddDetail(finding.Warning, "memory", "keys were evicted since its start", fmt.Sprint(n),
			"Counts may be among them. CONFIG RESETSTAT after it is fixed.")
	}
	if limit > 0 && used >= limit/10*9 {
		f.AddDetail(finding.Warning, "memory", "maxmemory is nearly used: when it is full, requests have no verdict", fmt.Sprintf("%d%%", 100*used/limit),
			"Raise maxmemory, add a group, or shorten windows.")
	}
	if limit == 0 {
		f.Add(finding.Info, "memory", "maxmemory isn't set: the kernel decides when it is full",
			"Set it below what the host has, with noeviction.")
	}
	return f
}

func (e *serverReport) checkReplication(maxLag time.Duration) (f finding.List) {
	if !e.replica() {
		return nil
	}
	switch age := e.age(); {
	case e.info["master_link_status"] != "up":
		f.AddDetail(finding.Critical, "replication", "its link to the primary is down: it isn't read, and a failover to it loses counts",
			fmt.Sprintf("primary %s, for %v", primaryAddr(e.info), age),
			"See whether the primary runs and can be reached from there (masterauth, masteruser).")
	case age > maxLag:
		f.AddDetail(finding.Critical, "replication", "stale: it hasn't heard of its primary, though the link is up",
			fmt.Sprintf("primary %s, for %v", primaryAddr(e.info), age),
			"The primary hangs, or the network between the two. A failover to it loses counts.")
	}
	if e.info["slave_read_only"] == "0" {
		f.Add(finding.Warning, "replication", "it takes writes of its own", "CONFIG SET replica-read-only yes")
	}
	return f
}

// checkRole compares the role of a server with that by the topology, the sentinels or the Redis Cluster.
func (e *serverReport) checkRole() (f finding.List) {
	switch {
	case e.Role == cluster.RolePrimary && e.replica():
		f.AddDetail(finding.Critical, "role", "it is the group's primary, but says that it is a replica", "of "+primaryAddr(e.info),
			"Publish a topology that names the new primary; sentinels would tell by themselves.")
	case e.Role == cluster.RoleReplica && !e.replica():
		f.Add(finding.Critical, "role", "it is a replica of the group, but says that it is a primary: what it has is not the group's",
			"REPLICAOF the group's primary, or publish a topology without it.")
	}
	return f
}

// checkPersistence checks what a restart would lose.
func (e *serverReport) checkPersistence() (f finding.List) {
	if e.info["rdb_last_bgsave_status"] == "err" {
		f.Add(finding.Critical, "persistence", "the last save has failed: by default a primary then refuses all writes (stop-writes-on-bgsave-error)",
			"Look at its log and its disk.")
	}
	if e.info["aof_enabled"] == "1" && e.info["aof_last_write_status"] == "err" {
		f.Add(finding.Critical, "persistence", "the append-only file can't be written: a primary then refuses all writes",
			"Look at its log and its disk.")
	}
	if e.info["aof_enabled"] == "1" || e.known && e.saves || !e.known {
		return f
	}
	if replicas := infoInt(e.info, "connected_slaves"); !e.replica() && replicas > 0 {
		f.AddDetail(finding.Warning, "persistence", "it keeps nothing on disk: if it is restarted by itself, "+
			"it comes back empty, and its replicas empty themselves after it", fmt.Sprintf("%d replicas", replicas),
			"Turn appendonly on, or see to it that a primary that died is not restarted before a replica was promoted.")
		return f
	}
	f.Add(finding.Info, "persistence", "it keeps nothing on disk: a restart forgets all counts, and each key may have its quota once more",
		"Turn appendonly on if that is too much.")
	return f
}

func checkClients(said map[string]string) (f finding.List) {
	connected, most := infoInt(said, "connected_clients"), infoInt(said, "maxclients")
	if most > 0 && connected*10 >= most*9 {
		f.AddDetail(finding.Warning, "clients", "there is hardly room for more clients", fmt.Sprintf("%d of %d are connected", connected, most),
			"Raise maxclients (and the limit of open files), or look who leaves connections open (CLIENT LIST).")
	}
	if n := infoInt(said, "rejected_connections"); n > 0 {
		f.AddDetail(finding.Info, "clients", "connections were rejected since its start, because of maxclients", fmt.Sprint(n),
			"CONFIG RESETSTAT after it is fixed.")
	}
	return f
}
