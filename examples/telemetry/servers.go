package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/router"
)

// servers are two groups of a Redis primary and a replica.
type servers struct {
	topology  router.Topology
	primaries []*child
	replicas  []*child
}

func startServers(ctx context.Context, dir string) (*servers, error) {
	s := &servers{topology: router.Topology{Epoch: 1}}
	for _, name := range []string{"a", "b"} {
		if err := s.startGroup(ctx, name, dir); err != nil {
			s.stop()
			return nil, err
		}
	}
	return s, nil
}

func (s *servers) startGroup(ctx context.Context, name, dir string) error {
	primary, err := startChild(ctx, redis(), dir)
	if err != nil {
		return err
	}
	s.primaries = append(s.primaries, primary)
	host, port, _ := net.SplitHostPort(primary.addr)
	replica, err := startChild(ctx, redis("--replicaof", host, port), dir)
	if err != nil {
		return err
	}
	s.replicas = append(s.replicas, replica)
	s.topology.Groups = append(s.topology.Groups, router.Group{
		Name: name, Primary: primary.addr, Replicas: []string{replica.addr},
	})
	return replica.await(ctx, func(c *child) bool { return c.says("INFO replication", "master_link_status:up") })
}

func (s *servers) stop() {
	for _, c := range append(s.primaries, s.replicas...) {
		c.stop()
	}
}

func redis(more ...string) kind {
	return kind{
		program: "redis-server",
		args: func(port, _ string) []string {
			return append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
				"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"}, more...) // a replica attaches at once
		},
		ready: func(c *child) bool { return c.says("INFO server", "process_id:"+strconv.Itoa(c.cmd.Process.Pid)) },
	}
}

// says asks a Redis one line, and reports whether the answer holds a line.
func (c *child) says(ask, want string) bool {
	conn, err := net.DialTimeout("tcp", c.addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprintf(conn, "%s\r\n", ask); err != nil {
		return false
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		switch lines.Text() {
		case want:
			return true
		case "": // the last one
			return false
		}
	}
	return false
}

// startPrometheus runs one that reads target, with the alerts.
func startPrometheus(ctx context.Context, dir, target string, o *options) (*child, error) {
	rules, err := filepath.Abs(o.rules)
	if err == nil {
		_, err = os.Stat(rules)
	}
	if err != nil {
		return nil, fmt.Errorf("-rules: %w", err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`global: {scrape_interval: %[1]dms, scrape_timeout: %[1]dms, evaluation_interval: %[1]dms}
rule_files: [%[2]q]
scrape_configs:
- job_name: telemetry
  static_configs: [{targets: [%[3]q]}]
`, o.scrape.Milliseconds(), rules, target)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return startChild(ctx, kind{
		program: "prometheus",
		args: func(port, dir string) []string {
			return []string{"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
				"--web.listen-address=127.0.0.1:" + port, "--log.level=warn"}
		},
		ready: func(c *child) bool {
			client := http.Client{Timeout: time.Second}
			defer client.CloseIdleConnections()
			res, err := client.Get("http://" + c.addr + "/-/ready")
			if err != nil {
				return false
			}
			return res.Body.Close() == nil && res.StatusCode == http.StatusOK
		},
	}, dir)
}

// alertsPage is where a Prometheus shows its alerts. Debian's package has only the classic pages.
func alertsPage(ctx context.Context, prometheus string) string {
	const page, classic = "/alerts", "/classic/alerts"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, prometheus+page, nil)
	if err != nil {
		return page
	}
	client := http.Client{Timeout: startTime}
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return page
	}
	_ = res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return classic
	}
	return page
}
