package doctor

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
)

// ill is a group as no test can make it of real servers in a moment.
func ill() []*serverReport {
	info := func(more ...string) map[string]string {
		all := map[string]string{
			"redis_version": "7.4.0", "role": "master", "used_memory": "96468992", "maxmemory": "104857600", "maxmemory_policy": "volatile-lru",
			"connected_clients": "950", "maxclients": "1000", "evicted_keys": "12", "rejected_connections": "3", "master_replid": "a",
			"master_repl_offset": "9000000", "aof_enabled": "1", "aof_last_write_status": "err", "rdb_last_bgsave_status": "err",
		}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	return []*serverReport{
		{Member: cluster.Member{Group: "eu-1", Address: "10.0.0.1:6379", Role: cluster.RolePrimary, Prefix: "sl:"}, info: info(), rtt: time.Millisecond},
		{
			Member: cluster.Member{Group: "eu-1", Address: "10.0.0.2:6379", Role: cluster.RoleReplica, Prefix: "sl:"}, rtt: time.Millisecond, offset: -90 * time.Second,
			info: info("redis_version", "8.2.6", "role", "slave", "master_link_status", "up", "master_last_io_seconds_ago", "40", "master_host", "10.0.0.1",
				"master_port", "6379", "slave_repl_offset", "1000000", "maxmemory_policy", "noeviction", "used_memory", "1048576",
				"connected_clients", "2", "evicted_keys", "0", "rejected_connections", "0", "aof_last_write_status", "ok", "rdb_last_bgsave_status", "ok"),
		},
	}
}

// The form of what doctor says; that it finds what is there is for the tests on real servers.
func TestDoctorOutput(t *testing.T) {
	t.Parallel()
	d := new(diagnosis)
	all := ill()
	var f finding.List
	for _, e := range all {
		for _, one := range e.check(15 * time.Second) {
			one.Group, one.Server = e.Group, e.Address
			f = append(f, one)
		}
		d.Servers = append(d.Servers, e.facts())
	}
	f = append(append(f, checkReplicas(all)...), checkClocks(all, time.Second)...)
	d.Findings = f.Sorted()
	for _, form := range []string{"txt", "json"} {
		var b bytes.Buffer
		if err := (&cli.Factory{Streams: cli.Streams{Out: &b}, JSON: form == "json"}).Print(d); err != nil {
			t.Fatal(err)
		}
		fixture.Golden(t, "doctor."+form, b.String())
	}
	if err := f.Err(finding.Warning); cli.ExitCode(err) != cli.ExitFound || !strings.HasPrefix(err.Error(), "found: ") {
		t.Errorf("%v", err)
	}
	if err := (finding.List{{Severity: finding.Info}}).Err(finding.Warning); err != nil {
		t.Errorf("%v", err)
	}
}

func TestHoles(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, version string
		severity      finding.Severity
		ids           []string // that are told
		to            string
	}{
		{"redis", "6.0.20", finding.Critical, nil, ""}, // too old for Sluice
		{"redis", "6.2.12", finding.Warning, []string{"CVE-2022-24834", "CVE-2026-23631"}, "6.2.22"},
		{"redis", "6.2.15", finding.Warning, []string{"CVE-2024-31449", "CVE-2024-46981", "CVE-2025-49844", "CVE-2025-46817", "CVE-2025-46818", "CVE-2025-46819"}, "6.2.22"},
		{"redis", "6.2.16", finding.Warning, []string{"CVE-2024-46981", "CVE-2025-49844"}, "6.2.22"},
		{"redis", "7.0.15", finding.Warning, []string{"CVE-2024-31449", "CVE-2025-49844"}, "7.2.14"},
		{"redis", "7.2.10", finding.Warning, []string{"CVE-2025-49844"}, "7.2.14"},
		{"redis", "7.2.11", finding.Warning, []string{"CVE-2026-23631"}, "7.2.14"},
		{"redis", "7.4.1", finding.Warning, []string{"CVE-2024-46981"}, "7.4.9"},
		{"redis", "8.0.3", finding.Warning, []string{"CVE-2025-49844", "CVE-2026-23631"}, "8.2.6"},
		{"redis", "8.0.4", finding.Warning, []string{"CVE-2026-23631"}, "8.2.6"},
		{"redis", "8.2.1", finding.Warning, []string{"CVE-2025-46819"}, "8.2.6"},
		{"redis", "6.2.22", 0, nil, ""},
		{"redis", "7.2.14", 0, nil, ""},
		{"redis", "7.4.9", 0, nil, ""},
		{"redis", "8.2.6", 0, nil, ""},
		{"redis", "8.6.3", 0, nil, ""},
		{"redis", "8.8.0", 0, nil, ""},
		{"valkey", "8.1.3", finding.Warning, []string{"CVE-2025-49844"}, "8.1.7"},
		{"valkey", "8.0.0", finding.Warning, []string{"CVE-2024-31449", "CVE-2024-46981"}, "8.0.8"},
		{"valkey", "7.2.11", finding.Warning, []string{"CVE-2025-67733", "CVE-2026-23631"}, "7.2.13"},
		{"valkey", "7.2.12", finding.Warning, []string{"CVE-2026-23631"}, "7.2.13"},
		{"valkey", "9.0.2", finding.Warning, []string{"CVE-2025-67733"}, "9.0.4"},
		{"valkey", "9.0.3", finding.Warning, []string{"CVE-2026-23631"}, "9.0.4"},
		{"valkey", "7.2.13", 0, nil, ""},
		{"valkey", "8.0.8", 0, nil, ""},
		{"valkey", "8.1.7", 0, nil, ""},
		{"valkey", "9.0.4", 0, nil, ""},
		{"valkey", "9.1.0", 0, nil, ""},
		{"redis", "unknown", finding.Warning, []string{"can't be read"}, ""},
	} {
		said := map[string]string{"redis_version": test.version}
		if test.name == "valkey" {
			said = map[string]string{"redis_version": "7.2.4", "valkey_version": test.version}
		}
		f := checkVersion(said)
		if test.severity == 0 {
			if len(f) > 0 {
				t.Errorf("%s %s: %+v", test.name, test.version, f)
			}
			continue
		}
		if len(f) == 0 || f[0].Severity != test.severity {
			t.Errorf("%s %s: %+v", test.name, test.version, f)
			continue
		}
		for _, id := range test.ids {
			if !strings.Contains(f[0].What, id) {
				t.Errorf("%s %s: no %s in %s", test.name, test.version, id, f[0].What)
			}
		}
		if !strings.Contains(f[0].Do, test.to) {
			t.Errorf("%s %s: %s, want %s", test.name, test.version, f[0].Do, test.to)
		}
	}
	if f := checkVersion(map[string]string{"redis_version": "7.2.11"}); strings.Contains(f[0].What, "CVE-2025") {
		t.Errorf("mended, and told: %+v", f)
	}
}

func TestMiddle(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		offsets []time.Duration
		want    time.Duration
	}{
		{[]time.Duration{0}, 0},
		{[]time.Duration{0, 5}, 0},
		{[]time.Duration{0, -5}, 0},
		{[]time.Duration{0, 5, 5}, 5},
		{[]time.Duration{-5, 0, 5}, 0},
		{[]time.Duration{0, 4, 5, 6}, 4},
		{[]time.Duration{0, -4, -5, -6}, -4},
	} {
		if got := medianOffset(test.offsets); got != test.want {
			t.Errorf("%v: %v, want %v", test.offsets, got, test.want)
		}
	}
}

// What a replica may not do is no outage: documentation grants it less.
func TestDoctorLooksAtRightsOnReplica(t *testing.T) {
	t.Parallel()
	e := &serverReport{Member: cluster.Member{Prefix: "sl:"}, info: map[string]string{"role": "slave"}, permissions: permissions{missing: []string{"+set"}}}
	if f := e.checkPermissions(); len(f) != 1 || f[0].Severity != finding.Warning || !strings.Contains(f[0].What, "after a failover to it: user default lacks +set") {
		t.Errorf("%+v", f)
	}
	if e.info["role"] = "master"; e.checkPermissions()[0].Severity != finding.Critical {
		t.Errorf("%+v", e.checkPermissions())
	}
}
