package template

import (
	"fmt"
	"strings"
	"time"
)

// strftime formats t by Python's directives, in the C locale. Unknown directives stay as they are.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		unpadded := false
		if format[i] == '-' && i+1 < len(format) {
			unpadded = true
			i++
		}
		text, ok := directive(t, format[i])
		switch {
		case !ok && unpadded:
			b.WriteString(format[i-2 : i+1])
		case !ok:
			b.WriteString(format[i-1 : i+1])
		case unpadded && len(text) > 1:
			if text = strings.TrimLeft(text, "0 "); text == "" {
				text = "0"
			}
			b.WriteString(text)
		default:
			b.WriteString(text)
		}
	}
	return b.String()
}

func directive(t time.Time, c byte) (string, bool) {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'M': "04", 'S': "05",
		'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'p': "PM", 'Z': "MST", 'z': "-0700",
		'D': "01/02/06", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006",
		'x': "01/02/06", 'X': "15:04:05",
	}
	if layout, ok := layouts[c]; ok {
		return t.Format(layout), true
	}
	switch c {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'j':
		return fmt.Sprintf("%03d", t.YearDay()), true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'w':
		return fmt.Sprint(int(t.Weekday())), true
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'U':
		return fmt.Sprintf("%02d", (t.YearDay()+6-int(t.Weekday()))/7), true
	case 'W':
		return fmt.Sprintf("%02d", (t.YearDay()+6-(int(t.Weekday())+6)%7)/7), true
	}
	return "", false
}
