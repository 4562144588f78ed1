// Package router spreads keys over groups, each of one primary and its replicas, and is itself a [backend.Backend].
//
//	topology, err := router.LoadTopology("groups.json")
//	if err != nil {
//		return err
//	}
//	counts, err := router.Open(topology, router.Config{})
//
// with groups.json:
//
//	{"epoch": 1, "groups": [
//		{"name": "eu-1", "primary": "10.0.0.1:6379", "replicas": ["10.0.0.2:6379", "10.0.0.3:6379"]},
//		{"name": "eu-2", "primary": "10.0.1.1:6379", "replicas": ["10.0.1.2:6379"]}
//	]}
//
// [Open] makes Redis nodes from addresses; [New] takes any backends as nodes.
//
// # Kinds of groups
//
//	{"name": "eu-1", "primary": "10.0.0.1:6379", "replicas": ["10.0.0.2:6379"]}
//	{"name": "eu-2", "sentinels": ["10.0.0.7:26379", "10.0.0.8:26379", "10.0.0.9:26379"], "master": "main"}
//	{"name": "eu-3", "cluster": ["10.0.2.1:6379", "10.0.2.2:6379"]}
//
// A group with sentinels has the nodes that they name. The router polls them now and then, and when the primary is down or says
// READONLY; and it listens for failovers. The newest failover that any sentinel knows counts. Calls then go to the new primary, and
// no key changes its owner. A failover may lose the latest counts, since servers replicate after they answer: each loss admits
// at most Max more. While all sentinels are down the nodes stay as they are.
//
// A Redis Cluster is one group, which distributes its keys itself. Takes go to its primaries and follow slots that move; peeks
// go to its replicas, while all that answer hear of their primaries. A shard that is down or hangs affects its own keys only,
// so no single call opens the breaker of a cluster: it opens when the heartbeat finds no shard. (By default a cluster with such
// a shard refuses all keys: set its cluster-require-full-coverage to no.) The clock of a cluster is that of one primary, the
// one that keeps the topology; another one's is used once that has been silent for 30 s. So its primaries should agree on the
// time. Credentials need +cluster|slots, +command, +readonly, +ping and +asking besides what redisbackend.Redis names.
//
// # Where a call goes
//
// A consistent-hash ring (package ring) over the names and weights of the groups says which group owns a key. Only a new
// topology changes that. A dead node does not: its keys have no verdict until it is back, and the caller's failure policy
// decides meanwhile. Another group would not know what they have used.
//
//	take, charge, refund, reset, grant, seed, seal   the primary of the owning group: one call, never a second one
//	peek, load                                       a replica that is fit to be read, else another one, else the primary
//
// Only a primary admits. Within a window counts only grow, so a replica that lags behind under-reports: its "over the
// limit" is true (but for refunds on their way), its "under" proves nothing. A peek that says allowed from a replica is
// therefore Bounded, with the cause [backend.ErrReplicaMayLag]. A replica's state is judged by the primary's clock, and
// windows that are over are ignored, even if the replica still stores them.
//
// # Changing the topology
//
// [Router.Update] and [Router.WatchFile] put a newer topology in force while calls go on. The first call about a key that changes
// its owner takes its counts along, so that no window holds more than its Max. Processes that were not updated learn of the
// topology from the servers, if it leads to servers that they know or [Config.AllowedAddresses] allows, or is signed with one of
// [Config.TopologyKeys]. Each topology that moves keys has an epoch above that of the one before, and names that as its
// Previous until the longest window of any policy is over; then it is a baseline. Addresses change under the same epoch.
//
//	{"epoch": 2, "groups": [ ... ], "previous": {"epoch": 1, "groups": [ ... ]}}
//
// # Health
//
// Every node has a circuit breaker outside its client. It opens when the node is unavailable. All answers of a healthy
// server keep it closed, refusals too, and a caller who gives up early changes nothing. A heartbeat pings each node through the
// same breaker, so that an idle node's breaker opens and closes, too. Changes are reported as an [Event]; [Router.Nodes] is the
// present state.
//
// A primary may answer but refuse writes: it has become a replica, has no memory or too few replicas, or can't save. Then its
// breaker keeps writes from it until one succeeds or, if it had become a replica, the server says that it is a primary again.
// Reads go on. What a primary that has become a replica allows is Bounded, as from any replica.
//
// # What it does not promise
//
// A primary that lost writes decides from what it has, and from the floor of a request that carries one. A node is judged as a
// whole, so it should be one server: a composite behind one breaker would fail as a whole when a part of it does.
//
// A Router is safe for concurrent use. Until Close it runs a goroutine per node, one per sentinel and group that it serves, one
// more for each such group, one that syncs topologies, and one for events.
package router
