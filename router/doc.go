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
// The nodes of a group with sentinels are those that the sentinels name. They are asked at once, now and then, and when the
// primary is away or says READONLY; and they tell of a failover. Of what they say the newest failover counts, so that one
// that was cut off leads nobody back. Calls go to the new primary from then on, and no key changes its owner; but a failover
// may lose the latest counts, since servers replicate later than they answer: at most Max more are admitted for each loss.
// While all sentinels are away the nodes stay as they are.
//
// A Redis Cluster is one group, which shares its keys out itself. Takes go to its primaries and follow slots that move;
// peeks go to its replicas, while all of those that answer hear of their primaries. A shard that is away fails its keys
// only, so no single call opens the breaker of a cluster: it opens when the heartbeat finds no shard. (By default a cluster
// refuses all keys meanwhile: set its cluster-require-full-coverage to no.) A shard that hangs holds up calls for its own keys
// only. The clock of a cluster is that of any of its primaries, so these should agree on the time. Credentials need
// +cluster|slots, +command, +readonly, +ping and +asking besides what redisbackend.Redis names.
//
// # Where a call goes
//
// A consistent-hash ring (package ring) over the names and weights of the groups says who owns a key. Only a new
// topology changes that. A dead node does not: its keys have no verdict until it is back, and the failure policy of
// the caller decides meanwhile. To give them to another group would forget what they have used.
//
//	take, refund, reset, seed, seal   the primary of the owning group: one call, never a second one, never elsewhere
//	peek, load                        a replica that is fit to be read, else another one, else the primary
//
// Only a primary admits. Within a window counts only grow, so a replica that lags behind under-reports: its "over the
// limit" is true (but for refunds on their way), its "under" proves nothing. A peek that says allowed from a replica is
// therefore Bounded, with the cause [backend.ErrReplicaMayLag]. What a replica holds is judged at the primary's clock, and
// windows that are over are ignored, whether or not the replica still holds them.
//
// # Changing the topology
//
// [Router.Update] and [Router.WatchFile] put a newer topology in force while calls go on. Keys that change their owner take
// their counts along, one by one, when they are asked for, so that no window holds more than its Max; processes that have
// not heard of the change learn of it from the servers, if it leads to servers that they know or [Config.AllowedAddresses]
// allows, or is signed with one of [Config.TopologyKeys]. Each topology that moves keys has an epoch above that of the one
// before, and names that as its Previous until the longest window of any policy is over; then it is a baseline. Addresses
// change under the same epoch.
//
//	{"epoch": 2, "groups": [ ... ], "previous": {"epoch": 1, "groups": [ ... ]}}
//
// # Health
//
// Every node has a circuit breaker outside its client. It opens when the node is unavailable; answers that a healthy
// server gives, refusals among them, keep it closed, and a caller who gives up early says nothing about a server. A
// heartbeat asks each node how it is, through the same breaker, so that an idle node's breaker opens and closes too.
// What changes is reported as an [Event]; [Router.Nodes] is the present state.
//
// A primary may answer and yet take no writes: it has become a replica, has no memory or too few replicas, or can't save.
// Its breaker then keeps takes from it until one gets through or, of a replica, the server says that it is a primary
// again. Reads go on. What a primary says that has become a replica is Bounded, as from any replica, if it says allowed.
//
// # What it does not promise
//
// Nothing here makes a primary's loss of writes good: a primary that comes back empty decides from what it has, and from
// the floor of a request that carries one. A node is judged as a whole, so it should be one server: a composite behind
// one breaker would fail as a whole when a part of it does.
//
// A Router is safe for concurrent use. It runs a goroutine per node, one per sentinel and group that it serves, one more for
// each such group, and one for events, until Close.
package router
