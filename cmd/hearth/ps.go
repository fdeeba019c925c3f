package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// running is what ps shows of one entry of GET /api/ps; --json passes the server's answer through.
type running struct {
	Name      string    `json:"name"`
	State     string    `json:"state"`
	Progress  float64   `json:"progress"`
	Size      int64     `json:"size"`
	Backend   string    `json:"backend"`
	Device    string    `json:"device"`
	Context   int       `json:"context_length"`
	CellsUsed int       `json:"cells_used"`
	Cells     int       `json:"cells_total"`
	Running   int       `json:"running"`
	Waiting   int       `json:"waiting"`
	PID       int       `json:"pid"`
	Expires   time.Time `json:"expires_at"`
	Fallback  string    `json:"fallback_reason"`
	Error     string    `json:"error"`
}

func (a *app) psCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:   "ps",
		Short: "list the models that are loaded",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			var raw json.RawMessage
			if err := clientFor(cfg).get(ctx, "/api/ps", &raw); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(raw)
			}
			var ps struct {
				Models []running `json:"models"`
			}
			if err := json.Unmarshal(raw, &ps); err != nil {
				return fmt.Errorf("read answer: %w", err)
			}
			a.printRunning(ps.Models)
			return nil
		},
	})
}

func (a *app) printRunning(list []running) {
	rows := [][]string{{"NAME", "SIZE", "STATE", "BACKEND", "FALLBACK", "DEVICE", "CONTEXT", "KV CELLS", "REQUESTS", "UNTIL"}}
	for _, m := range list {
		state := m.State
		if state == "loading" {
			state = fmt.Sprintf("loading %.0f%%", 100*m.Progress)
		}
		until := "forever"
		if !m.Expires.IsZero() && m.Expires.Year() < 2200 {
			until = span(m.Expires.Sub(a.now())) + " from now"
		}
		fallback := "-" // the reason stands below the table
		if m.Fallback != "" {
			fallback = "yes"
		}
		rows = append(rows, []string{
			m.Name, size(m.Size), state, dash(m.Backend), fallback, dash(m.Device), fmt.Sprint(m.Context), fmt.Sprintf("%d/%d", m.CellsUsed, m.Cells),
			fmt.Sprintf("%d+%d", m.Running, m.Waiting), until,
		})
	}
	table(a.out, rows)
	for _, m := range list {
		if m.Fallback != "" {
			a.printf("%s runs on %s because %s\n", m.Name, m.Backend, m.Fallback)
		}
		if m.Error != "" {
			a.printf("%s: %s\n", m.Name, m.Error)
		}
	}
}

func (a *app) stopCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "stop MODEL",
		ValidArgsFunction: a.completeModels(1),
		Short:             "unload a model from the running server",
		Args:              args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			resp, err := clientFor(cfg).do(cmd.Context(), http.MethodPost, "/api/stop", map[string]string{"model": argv[0]})
			if err != nil {
				return err
			}
			resp.Body.Close()
			a.printf("stopped %s\n", argv[0])
			return nil
		},
	}
}
