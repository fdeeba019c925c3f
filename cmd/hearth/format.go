package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// size is a number of bytes as people write it, in powers of 1000 like disks and downloads.
func size(n int64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, prefix := float64(n)/unit, 0
	for v >= unit && prefix < 4 {
		v /= unit
		prefix++
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %cB", v, "kMGTP"[prefix])
	}
	return fmt.Sprintf("%.0f %cB", v, "kMGTP"[prefix])
}

// count is a number of weights: "135M", "7.2B".
func count(n uint64) string {
	switch {
	case n >= 10e9:
		return fmt.Sprintf("%.0fB", float64(n)/1e9)
	case n >= 1e9:
		return fmt.Sprintf("%.1fB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.0fM", float64(n)/1e6)
	}
	return fmt.Sprint(n)
}

// ago is how long before now t was.
func ago(now, t time.Time) string {
	return span(now.Sub(t)) + " ago"
}

// span is a duration in its largest unit.
func span(d time.Duration) string {
	unit := func(n int, name string) string {
		if n == 1 {
			return "1 " + name
		}
		return fmt.Sprintf("%d %ss", n, name)
	}
	switch {
	case d < time.Minute:
		return unit(max(int(d/time.Second), 0), "second")
	case d < time.Hour:
		return unit(int(d/time.Minute), "minute")
	case d < 48*time.Hour:
		return unit(int(d/time.Hour), "hour")
	}
	return unit(int(d/(24*time.Hour)), "day")
}

// table writes columns aligned with spaces, the first row being the head.
func table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	tw.Flush()
}

// dash stands for an empty cell.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
