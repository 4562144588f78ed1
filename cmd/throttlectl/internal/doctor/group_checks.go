package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
)

// maxBehind is how many bytes a replica may lag. The offsets of both are not read at one moment.
const maxBehind = 1 << 20

// checkReplicas compares replicas with the primary of their group, by the replication ID: addresses may differ by where they are
// seen from.
func checkReplicas(all []*serverReport) (f finding.List) {
	for _, replica := range all {
		if replica.err != nil || !replica.replica() {
			continue
		}
		i := slices.IndexFunc(all, func(e *serverReport) bool {
			return e.Group == replica.Group && e.Group != "" && e.Role == cluster.RolePrimary && e.err == nil && !e.replica()
		})
		if i < 0 || countPrimaries(all, replica.Group) > 1 {
			continue
		}
		primary, one := all[i], finding.Finding{Check: "replication", Group: replica.Group, Server: replica.Address}
		behind := replicationLag(primary, replica)
		switch {
		case primary.info["master_replid"] != replica.info["master_replid"]:
			one.Severity = finding.Critical
			one.What = fmt.Sprintf("it doesn't copy the group's primary %s, but %s", primary.Address, primaryAddr(replica.info))
			one.Do = "REPLICAOF the group's primary, or fix the topology."
		case behind > maxBehind:
			one.Severity = finding.Warning
			one.What = fmt.Sprintf("it is %d bytes behind its primary", behind)
			one.Do = "Look at the network between the two, and at the replica's load."
		default:
			continue
		}
		f = append(f, one)
	}
	return f
}

// countPrimaries is how many primaries a group has: several in a Redis Cluster, which assigns its replicas itself.
func countPrimaries(all []*serverReport, group string) (n int) {
	for _, e := range all {
		if e.Group == group && e.Role == cluster.RolePrimary {
			n++
		}
	}
	return n
}

func replicationLag(primary, replica *serverReport) int64 {
	return max(infoInt(primary.info, "master_repl_offset")-infoInt(replica.info, "slave_repl_offset"), 0)
}

// checkClocks finds clocks that differ from the median of all and of this host's. Applications take the time from the servers: a
// clock that is off makes windows end early or late after a handover or failover.
func checkClocks(all []*serverReport, maxSkew time.Duration) (f finding.List) {
	offsets := []time.Duration{0} // this host's
	for _, e := range all {
		if e.err == nil && e.Role != cluster.RoleSentinel {
			offsets = append(offsets, e.offset)
		}
	}
	most := medianOffset(offsets)
	for _, e := range all {
		if e.err != nil || e.Role == cluster.RoleSentinel {
			continue
		}
		if off := e.offset - most; off.Abs() > maxSkew+e.rtt/2 {
			against := "the other clocks"
			if len(offsets) == 2 {
				against = "this host's, one of the two is wrong"
			}
			f = append(f, finding.Finding{Severity: finding.Critical, Check: "clock", Group: e.Group, Server: e.Address,
				What: fmt.Sprintf("its clock is %s %s", describeOffset(off), against), Do: "Let NTP set it, slowly: windows end by it."})
		}
	}
	if most.Abs() > maxSkew {
		f.Add(finding.Info, "clock", fmt.Sprintf("this host's clock is %s the servers'", describeOffset(-most)), "Let NTP set it. "+
			"Applications go by the servers' clocks.")
	}
	return f
}

// medianOffset is the median, of two the one that is nearer to this host's clock.
func medianOffset(offsets []time.Duration) time.Duration {
	slices.Sort(offsets)
	low, high := offsets[(len(offsets)-1)/2], offsets[len(offsets)/2]
	if high.Abs() < low.Abs() {
		return high
	}
	return low
}

func describeOffset(d time.Duration) string {
	if d < 0 {
		return d.Abs().Round(time.Millisecond).String() + " behind"
	}
	return d.Round(time.Millisecond).String() + " ahead of"
}
