package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// Report is everything that a run has measured.
type Report struct {
	Machine Machine      `json:"machine"`
	Rounds  int          `json:"rounds"`
	Slice   string       `json:"slice"`
	Keys    int          `json:"keys"`
	Seed    uint64       `json:"seed"`
	Context string       `json:"context"`
	Network []NetworkRow `json:"network"`
	Memory  []MemoryRow  `json:"memory"`
	HTTP    []MemoryRow  `json:"http"`
	Rings   []RingRow    `json:"rings"`
	Targets []Verdict    `json:"targets"`
}

// Machine is what the figures depend on.
type Machine struct {
	When  string `json:"when"`
	CPU   string `json:"cpu"`
	Procs int    `json:"gomaxprocs"`
	Go    string `json:"go"`
	Redis string `json:"redis"`
}

func newReport(c *config, redisVersion string) *Report {
	r := &Report{
		Machine: Machine{
			When: time.Now().UTC().Format(time.DateOnly), CPU: cpuModel(), Procs: runtime.GOMAXPROCS(0),
			Go: runtime.Version(), Redis: redisVersion,
		},
		Rounds: c.rounds, Slice: c.slice.String(), Keys: c.keys, Seed: c.seed, Context: "cancellable",
	}
	if c.loose {
		r.Context = "background"
	}
	return r
}

// String is the line above the tables.
func (r *Report) String() string {
	return fmt.Sprintf("%s, %s, GOMAXPROCS=%d, %s, redis-server %s; medians of %d rounds of %s, %d keys, %s contexts, seed %d",
		r.Machine.When, r.Machine.CPU, r.Machine.Procs, r.Machine.Go, r.Machine.Redis, r.Rounds, r.Slice, r.Keys, r.Context, r.Seed)
}

// cpuModel is the processor's name where the system tells it in the way of Linux, otherwise its architecture.
func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func (r *Report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
