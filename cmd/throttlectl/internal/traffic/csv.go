package traffic

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/limit"
)

const CSVHelp = `A CSV file has a request a line: its time, as RFC 3339 or in Unix seconds or milliseconds, and if there are more columns,
its key and its cost. A first line that is no request names the columns: time, key and cost, in any order, among others.
Lines must be in the order of time, within 100 years. They are read one by one, so that a log of any length will do.`

const (
	maxLine     = 1 << 16 // bytes
	maxRecorded = 100 * 365 * 24 * time.Hour
)

// lineError is why a line can't be played. It never holds what is in the line, which may be a key.
type lineError struct {
	Line int
	Err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *lineError) Unwrap() error { return e.Err }

// columns are the positions of the fields in a line, -1 if missing.
type columns struct{ time, key, cost int }

// ReadCSV is the traffic in a CSV file. Its errors name the line.
func ReadCSV(in io.Reader) Traffic {
	return func(yield func(Request, error) bool) {
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, maxLine)
		where := columns{0, 1, 2}
		n, first, last, sum := 0, int64(-1), int64(math.MinInt64), int64(0)
		fail := func(a Request, err error) { yield(a, &lineError{n, err}) }
		for lines.Scan() {
			n++
			fields, err := split(strings.TrimPrefix(lines.Text(), "\ufeff"))
			if err == nil && fields == nil {
				continue // a blank line
			}
			if n == 1 && err == nil {
				if named, ok := nameColumns(fields); ok {
					where = named
					continue
				}
			}
			var a Request
			if err == nil {
				a, err = where.request(fields)
			}
			if err == nil && a.At < last {
				err = errors.New("is earlier than the line before: sort the file by time")
			}
			if first < 0 {
				first = a.At
			}
			if err == nil && a.At-first > maxRecorded.Microseconds() {
				err = errors.New("time: must be within 100 years of the first request")
			}
			if err == nil && a.Cost > limit.MaxCount-sum { // no sum overflows
				err = fmt.Errorf("cost: must leave the sum of all at most %d", limit.MaxCount)
			}
			if err != nil {
				fail(a, err)
				return
			}
			sum += a.Cost
			if last = a.At; !yield(a, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			n++
			fail(Request{}, err)
		}
	}
}

// split returns the fields of a line, none if it is blank.
func split(line string) ([]string, error) {
	line = strings.TrimSuffix(line, "\r")
	switch {
	case strings.TrimSpace(line) == "":
		return nil, nil
	case !strings.Contains(line, `"`):
		return strings.Split(line, ","), nil
	}
	fields, err := csv.NewReader(strings.NewReader(line)).Read()
	if err != nil {
		return nil, errors.New("has quotes that don't match")
	}
	return fields, nil
}

// nameColumns reads a first line that names the columns.
func nameColumns(fields []string) (columns, bool) {
	where := columns{-1, -1, -1}
	for i, name := range fields {
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "time", "timestamp", "ts":
			where.time = i
		case "key":
			where.key = i
		case "cost":
			where.cost = i
		}
	}
	return where, where.time >= 0
}

func (c columns) request(fields []string) (a Request, err error) {
	field := func(i int) string {
		if i < 0 || i >= len(fields) {
			return ""
		}
		return strings.TrimSpace(fields[i])
	}
	if a.At, err = parseTime(field(c.time)); err != nil {
		return a, err
	}
	if a.Key = field(c.key); a.Key == "" {
		a.Key = "-" // all requests without a key share one
	}
	a.Cost = 1
	if text := field(c.cost); text != "" {
		a.Cost, err = strconv.ParseInt(text, 10, 64)
		if err != nil || a.Cost < 1 || a.Cost > limit.MaxCount {
			return a, fmt.Errorf("cost: must be a whole number from 1 to %d", limit.MaxCount)
		}
	}
	return a, nil
}

// parseTime reads a time, in Unix microseconds. A number is in seconds if that is before the year 5138, else in
// milliseconds.
func parseTime(text string) (int64, error) {
	const secondsEnd = 1e11
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		if n >= secondsEnd {
			n /= 1e3
		}
		if n >= 0 && n < secondsEnd { // NaN is neither
			return int64(math.Round(n * 1e6)), nil
		}
	} else if at, err := time.Parse(time.RFC3339, text); err == nil && at.Unix() >= 0 {
		return at.UnixMicro(), nil
	}
	return 0, errors.New("time: must be RFC 3339, or Unix seconds or milliseconds, from 1970 on")
}
