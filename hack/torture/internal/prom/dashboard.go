package prom

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Dashboard is the dashboard for Grafana that is shipped.
type Dashboard struct {
	Title  string  `json:"title"`
	Panels []Panel `json:"panels"`
}

// Panel is a part of it.
type Panel struct {
	Title       string
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
	Targets []Expression
}

// Expression is a line, or several, of a panel.
type Expression struct{ Expr, LegendFormat string }

// ReadDashboard reads deploy/dashboard.json of a checkout.
func ReadDashboard(root string) (*Dashboard, error) {
	content, err := os.ReadFile(filepath.Join(root, "deploy/dashboard.json"))
	if err != nil {
		return nil, err
	}
	d := &Dashboard{}
	return d, json.Unmarshal(content, d)
}

// For is the expression with Grafana's variables set: all replicas, and rates over some time.
func (e Expression) For(rate time.Duration) string {
	return strings.NewReplacer("$instance", ".*",
		"$__rate_interval", fmt.Sprintf("%dms", rate.Milliseconds())).Replace(e.Expr)
}

// Legend names a line, as Grafana does.
func (e Expression) Legend(labels map[string]string) string {
	text := e.LegendFormat
	for name, value := range labels {
		text = strings.ReplaceAll(text, "{{"+name+"}}", value)
	}
	return text
}
