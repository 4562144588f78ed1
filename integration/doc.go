// Package integration holds the fault suite: one test for each row of the table in rows_test.go, on real processes, with a
// Throttler over a Router over Redis servers. Beside it, in the same run of the same fault, go where the comparison makes
// sense redis_rate on a plain go-redis client and redis_rate on a go-redis Ring.
//
//	make test             # servers are local processes: redis-server and memcached on PATH
//	make test-containers  # servers are containers, by testcontainers-go: needs a Docker engine
//	make scoreboard       # the local form, written to docs/FAULTS.md
//	make soak             # faults that take turns on the same servers, for SOAK=10m
//
// The build tag "containers" chooses the form. Every fault is caused in both: a server is killed, frozen and restarted by
// signals or by the engine, a partition between an application and a server is made by a proxy of the test, and what
// happens to an application happens to processes of the test binary. Sentinels, a Redis Cluster and a server with a clock of
// its own are local processes in both forms: others must reach them at the address at which the test does, or the clock is
// a shim that is compiled with cc.
//
// Containers are found by trying: at 127.0.0.1, at the engine's host or gateway, at host.docker.internal. If they answer at
// none of these, the tests fail within seconds; TESTCONTAINERS_HOST_OVERRIDE names another host.
//
// Every test logs one line that begins with "fault=": the promise's bound, what was admitted above Max, the longest
// call against its deadline, and how often a call was counted.
package integration
