package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Limits of reading the running kernel's log.
const (
	maxLog         = 8 << 20 // bytes; the kernel's ring has 256 KiB to 1 MiB
	journalTimeout = 1500 * time.Millisecond
)

// HostKernelLog reads the running kernel's messages, one a line: from /dev/kmsg when this user may, else from the
// journal, else ErrNotReadable. Most distributions keep the log from users who are not in the groups adm or
// systemd-journal.
func HostKernelLog(ctx context.Context) (string, error) {
	text, err := readKmsg()
	if err == nil {
		return text, nil
	}
	journal, jerr := exec.LookPath("journalctl")
	if jerr != nil {
		return "", fmt.Errorf("%w: %w", ErrNotReadable, err)
	}
	ctx, cancel := context.WithTimeout(ctx, journalTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, journal, "--dmesg", "--boot", "--quiet", "--no-pager", "--output=cat", "--lines=20000")
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	out, jerr := cmd.Output()
	if jerr != nil || len(bytes.TrimSpace(out)) == 0 { // no permission is silence
		return "", fmt.Errorf("%w: %w", ErrNotReadable, err)
	}
	return string(out), nil
}

// readKmsg reads /dev/kmsg without waiting for new messages. Each read gives one record.
func readKmsg() (string, error) {
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	defer func() { _ = syscall.Close(fd) }()
	var b strings.Builder
	record := make([]byte, 16<<10) // a record has at most 8 KiB and a bit
	for b.Len() < maxLog {
		n, err := syscall.Read(fd, record)
		switch {
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR): // records were overwritten meanwhile
			continue
		case errors.Is(err, syscall.EAGAIN), err == nil && n == 0:
			return b.String(), nil
		case err != nil:
			return "", &os.PathError{Op: "read", Path: "/dev/kmsg", Err: err}
		}
		b.WriteString(kmsgText(record[:n]))
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// kmsgText is a record's message: "6,1234,5678901,-;message\n KEY=value\n" without its head and its tags.
func kmsgText(record []byte) string {
	_, message, ok := bytes.Cut(record, []byte{';'})
	if !ok {
		message = record
	}
	line, _, _ := bytes.Cut(message, []byte{'\n'})
	return string(line)
}
