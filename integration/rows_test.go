//go:build unix

package integration_test

// A row is a fault and what is promised under it. The scoreboard shows the rows in this order.
type row struct {
	id      string // as in report, and in the lines that tests log
	fault   string
	promise string
}

// rows are all faults. What is promised is written out in the documentation of the packages; P1 to P15 in short:
// exact while one primary decides, every count at most once, a bound for everything else.
var rows = []row{
	{id: "primary-killed", fault: "primary killed (SIGKILL)",
		promise: "its keys get the failure policy, no key changes owner, all others stay exact; FailLocal admits at most processes x ceil(Max / processes) beside what the primary admitted"},
	{id: "frozen-node", fault: "primary frozen for 6 s (SIGSTOP)",
		promise: "every call returns by its deadline; after the thaw at most one count a call"},
	{id: "slow-node", fault: "primary busy for 2 s (DEBUG SLEEP)",
		promise: "every call returns by its deadline; afterwards at most one count a call"},
	{id: "reply-lost", fault: "every third reply lost after execution",
		promise: "at most one count a call; what is not known is reported, and denied"},
	{id: "reply-broken", fault: "replies truncated or later than the caller waits",
		promise: "nobody is given another caller's answer; at most one count a call"},
	{id: "partition", fault: "one of two processes cut off from a server",
		promise: "the failure policy for that process and that server alone: at most its share, ceil(Max / processes), above Max"},
	{id: "failover-1", fault: "failover that lost all writes, 3 times in a window, 1 process",
		promise: "at most what is admitted before a holder of the newest floor calls again"},
	{id: "failover-5", fault: "the same, 5 processes", promise: "the same"},
	{id: "failover-20", fault: "the same, 20 processes", promise: "the same"},
	{id: "failover-first-request", fault: "all counts lost, 20 processes; one without a floor is the first to ask, and begins a window", promise: "the same"},
	{id: "failover-no-floors", fault: "the same, 20 processes without floors", promise: "at most Max for each loss"},
	{id: "sentinel-failover", fault: "primary killed that three sentinels watch over, 5 processes",
		promise: "calls are decided again one heartbeat after the sentinels have named another primary, at the latest; at most what is admitted before a holder of the newest floor calls again"},
	{id: "split-brain", fault: "split brain: half of 10 processes on each side, then healed",
		promise: "at most what the side that lost has admitted"},
	{id: "restart-empty", fault: "primary restarts empty, 5 processes", promise: "at most what is admitted before a holder of the newest floor calls again; the restart is an event"},
	{id: "flushed", fault: "FLUSHALL, 5 processes", promise: "the same bound"},
	{id: "evicted", fault: "counts evicted (volatile-lru), 5 processes", promise: "the same bound"},
	{id: "stale-replica", fault: "stale replica", promise: "it may deny, it never admits; past MaxLag it is not read"},
	{id: "window-over", fault: "window over, replica still holds it", promise: "what is over counts for nothing"},
	{id: "error-replies", fault: "LOADING, BUSY, OOM, READONLY, NOREPLICAS, MASTERDOWN, NOSCRIPT, WRONGTYPE, NOPERM, NOAUTH, max clients",
		promise: "typed; a configuration error is loud and doesn't count as a node that is down"},
	{id: "redirections", fault: "MOVED, ASK, CLUSTERDOWN: slots of a Redis Cluster move under load, then one of 3 shards is killed",
		promise: "MOVED and ASK are followed, none fails; a cluster that is down gives no verdict: typed, not charged; at most one count a call"},
	{id: "frozen-shard", fault: "one of 3 shards of a Redis Cluster frozen for 3 s (SIGSTOP)",
		promise: "its keys have no verdict, every call returns by its deadline; those of the others are decided as before; at most one count a call"},
	{id: "host-clock", fault: "an application host's clock 26 years behind, then 24 ahead",
		promise: "0 above Max, one reset for all"},
	{id: "server-clock", fault: "a server's clock stepped forward and back by hours, 3 processes",
		promise: "no count goes negative; a step back by D keeps windows at most D longer, and admits nothing; each step forward past the end of a window admits at most Max, without floors twice Max"},
	{id: "reshard", fault: "reshard from 3 to 4 groups and back under load; 3 processes learn of it over 2 s",
		promise: "0 above Max, leases included"},
	{id: "topology-history", fault: "two changes of the topology; a process starts from a file whose `previous` names none of its own",
		promise: "what isn't known is refused, with what to write; with the whole chain 0 above Max"},
	{id: "topology-edited", fault: "an edited topology file: addresses only, an epoch forgotten, an epoch that goes back",
		promise: "addresses are taken over and keys that don't move go on; the others are refused with the number to write, calls go on; 0 above Max"},
	{id: "topology-foreign", fault: "a topology published by somebody who may only count: foreign addresses, the largest epoch",
		promise: "refused unless signed or allowed, nothing is sent to the foreign server, calls go on; taken away, the next epoch is taken over; 0 above Max"},
	{id: "flag-flipped", fault: "flag flipped forward and back under load, two processes that disagree",
		promise: "0 above Max with the counts carried over"},
	{id: "lease-killed", fault: "of three processes with leases one killed, one paused, two closed",
		promise: "0 above Max; stranded at most one batch, that of the killed process"},
	{id: "lease-paused", fault: "process with a lease paused past the end of its window",
		promise: "0 above Max in each window"},
	{id: "bucket-lives", fault: "a take waits on a slow lane, with a floor, until its token bucket was full and another process has emptied it",
		promise: "burst + rate x T in any interval"},
	{id: "no-descriptors", fault: "a process that has lost its connections and has no file descriptor left",
		promise: "every call returns by its deadline, and the failure policy decides; the servers decide again as soon as there are descriptors; at most one count a call"},
	{id: "shadow-without-rights", fault: "a shadow that Redis refuses (NOPERM), beside decisions under equal limits, 16 callers",
		promise: "decisions and errors as without the shadow (P15)"},
	{id: "denied-without-memory", fault: "no memory left (OOM); 8 callers of a key that is used up, and 8 of new ones",
		promise: "0 above Max; the key that is used up is denied, as without the other callers (P15)"},
	{id: "clients-reset", fault: "an HTTP/2 client that resets its streams, more than 1,000 a second",
		promise: "a few connections a second; other clients are answered as before (P15)"},
	{id: "many-keys", fault: "one hot key and 50,000 random keys",
		promise: "0 above Max of the hot key; memory, goroutines and connections are bounded"},
}
