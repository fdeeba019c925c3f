package template

import "time"

// vectorTime is the moment at which the expected texts were made.
func vectorTime() time.Time { return time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC) }
