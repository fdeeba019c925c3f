package configs

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Validate names the first bad setting in a *FieldError.
func (c *Config) Validate() error {
	if err := c.validateEnums(); err != nil {
		return err
	}
	for _, a := range c.Listen {
		if err := validateAddr(a); err != nil {
			return &FieldError{Key: "listen", Reason: err.Error()}
		}
	}
	if len(c.Listen) == 0 {
		return &FieldError{Key: "listen", Reason: "needs at least one address"}
	}
	for _, d := range []struct{ key, dir string }{
		{"dirs.models", c.Dirs.Models}, {"dirs.cache", c.Dirs.Cache}, {"dirs.state", c.Dirs.State}, {"dirs.runtime", c.Dirs.Runtime},
	} {
		if d.dir == "" {
			return &FieldError{Key: d.key, Reason: "is not set and there is no HOME to derive it from"}
		}
	}
	if p := filepath.Join(c.Dirs.Runtime, strings.Repeat("x", 40)); len(p) > maxSocketPath {
		return &FieldError{Key: "dirs.runtime", Reason: fmt.Sprintf("is too long for a socket below it (%d bytes in all)", maxSocketPath)}
	}
	for _, o := range c.Server.Origins {
		if u, err := url.Parse(o); o != "*" && (err != nil || u.Scheme == "" || u.Host == "" || u.Path != "") {
			return &FieldError{Key: "server.origins", Reason: fmt.Sprintf("%q is no origin, such as https://chat.example", o)}
		}
	}
	if s := c.Client.Server; s != "" {
		if u, err := url.Parse(s); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return &FieldError{Key: "client.server", Reason: fmt.Sprintf("%q is no address, such as http://127.0.0.1:9595", s)}
		}
	}
	return c.validateNumbers()
}

// ServerURL is where commands find the server: client.server, or the first of listen with a wildcard address replaced by
// the loopback one of its family.
func (c *Config) ServerURL() string {
	if c.Client.Server != "" {
		return strings.TrimRight(c.Client.Server, "/")
	}
	host, port, err := net.SplitHostPort(c.Listen[0])
	if err != nil {
		return "http://" + c.Listen[0] // Validate has checked it
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// maxSocketPath is sun_path's size on Linux less the final zero.
const maxSocketPath = 107

func (c *Config) validateEnums() error {
	for _, f := range Fields() {
		v := reflect.ValueOf(c).Elem().FieldByIndex(f.index)
		if len(f.Enum) > 0 && !slices.Contains(f.Enum, v.String()) {
			return &FieldError{Key: f.Key, Reason: fmt.Sprintf("is %q, must be one of %s", v.String(), strings.Join(f.Enum, ", "))}
		}
	}
	return nil
}

func (c *Config) validateNumbers() error {
	for _, n := range []struct {
		key      string
		v        int64
		low, top int64
	}{
		{"server.max_body", int64(c.Server.MaxBody), 1 << 10, 1 << 40},
		{"server.shutdown_timeout", int64(c.Server.ShutdownTimeout), 0, 1 << 60},
		{"pool.max_resident", int64(c.Pool.MaxResident), 1, 1 << 10},
		{"pool.acquire_timeout", int64(c.Pool.AcquireTimeout), 1, 1 << 60},
		{"run.context", int64(c.Run.Context), 0, 1 << 30},
		{"run.cells", int64(c.Run.Cells), 0, 1 << 30},
		{"run.max_sequences", int64(c.Run.MaxSequences), 0, 255},
		{"run.chunk", int64(c.Run.Chunk), 0, 1 << 20},
		{"run.threads", int64(c.Run.Threads), 0, 1 << 10},
		{"run.queue_limit", int64(c.Run.QueueLimit), 0, 1 << 20},
		{"run.itl_target", int64(c.Run.ITLTarget), 0, 1 << 40},
	} {
		if n.v < n.low || n.v > n.top {
			return &FieldError{Key: n.key, Reason: fmt.Sprintf("is %d, must be between %d and %d", n.v, n.low, n.top)}
		}
	}
	return nil
}

func validateAddr(a string) error {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		return fmt.Errorf("%q is no HOST:PORT", a)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q has no port between 0 and 65535", a)
	}
	if strings.ContainsAny(host, "/ ") {
		return fmt.Errorf("%q has no host name or address", a)
	}
	return nil
}
