package redisserver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Info is what a server says of itself, by name.
type Info map[string]string

// Info asks the server for sections of its INFO.
func (s *Server) Info(ctx context.Context, sections ...string) (Info, error) {
	text, err := s.Admin.Info(ctx, sections...).Result()
	if err != nil {
		return nil, err
	}
	return parseInfo(text), nil
}

func parseInfo(text string) Info {
	info := make(Info)
	for line := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") {
			info[name] = value
		}
	}
	return info
}

// CPUSeconds is the processor time that the server has used, in user and in system mode, with all its threads.
func (i Info) CPUSeconds() (float64, error) {
	sum := 0.0
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(i[name], 64)
		if err != nil {
			return 0, fmt.Errorf("INFO: %s: %w", name, err)
		}
		sum += seconds
	}
	return sum, nil
}

// Calls is how often each command was run since the statistics were reset, those that scripts called included, without those
// that measuring needs.
func (i Info) Calls() (map[string]int64, error) {
	calls := make(map[string]int64)
	for name, value := range i {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok || command == "info" || command == "config|resetstat" {
			continue
		}
		_, rest, _ := strings.Cut(value, "calls=")
		number, _, _ := strings.Cut(rest, ",")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("INFO: %s: %w", name, err)
		}
		calls[command] = n
	}
	return calls, nil
}
