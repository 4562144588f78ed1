package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// info is what the server says of itself, by name.
func (s *server) info(ctx context.Context, sections ...string) (map[string]string, error) {
	text, err := s.admin.Info(ctx, sections...).Result()
	if err != nil {
		return nil, err
	}
	return parseInfo(text), nil
}

func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") {
			info[name] = value
		}
	}
	return info
}

// cpuSeconds is the processor time that the server has used, in user and in system mode, with all its threads.
func cpuSeconds(info map[string]string) (float64, error) {
	sum := 0.0
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info[name], 64)
		if err != nil {
			return 0, fmt.Errorf("INFO: %s: %w", name, err)
		}
		sum += seconds
	}
	return sum, nil
}

// commands is how many commands the server has run since its statistics were reset, those that scripts called
// included, without those that this measurement needs.
func commands(info map[string]string) (int64, error) {
	var sum int64
	for name, value := range info {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok || command == "info" || command == "config|resetstat" {
			continue
		}
		_, rest, _ := strings.Cut(value, "calls=")
		number, _, _ := strings.Cut(rest, ",")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("INFO: %s: %w", name, err)
		}
		sum += n
	}
	return sum, nil
}
