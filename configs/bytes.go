package configs

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes is a size. It is written as a number of bytes or with a unit: "10MiB", "4 GB".
type Bytes int64

// UnmarshalText reads a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	i := strings.LastIndexAny(s, "0123456789.") + 1
	n, err := strconv.ParseFloat(strings.TrimSpace(s[:i]), 64)
	unit := map[string]float64{
		"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30,
		"kb": 1e3, "mb": 1e6, "gb": 1e9,
	}[strings.ToLower(strings.TrimSpace(s[i:]))]
	if err != nil || unit == 0 || n < 0 || n*unit > 1<<62 {
		return fmt.Errorf("%q is no size, such as 10MiB", s)
	}
	*b = Bytes(n * unit)
	return nil
}

// MarshalText writes whole MiB and KiB with their unit.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// BytesOrAuto is a size, or "auto", which is negative: whoever uses it chooses.
type BytesOrAuto int64

// UnmarshalText reads a size or "auto".
func (b *BytesOrAuto) UnmarshalText(text []byte) error {
	if strings.EqualFold(strings.TrimSpace(string(text)), "auto") {
		*b = -1
		return nil
	}
	return (*Bytes)(b).UnmarshalText(text)
}

// MarshalText is String.
func (b BytesOrAuto) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String is "auto" or a size.
func (b BytesOrAuto) String() string {
	if b < 0 {
		return "auto"
	}
	return Bytes(b).String()
}

// String is the shortest exact form.
func (b Bytes) String() string {
	switch {
	case b != 0 && b%(1<<30) == 0:
		return strconv.FormatInt(int64(b>>30), 10) + "GiB"
	case b != 0 && b%(1<<20) == 0:
		return strconv.FormatInt(int64(b>>20), 10) + "MiB"
	case b != 0 && b%(1<<10) == 0:
		return strconv.FormatInt(int64(b>>10), 10) + "KiB"
	}
	return strconv.FormatInt(int64(b), 10)
}
