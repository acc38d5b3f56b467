// Package exposition merges metrics that come in Prometheus's text format or in OpenMetrics into one of the two, line by
// line: it holds a line of what passes through it, and the names of the families that went by. What it writes is valid
// whatever it reads: lines that are not are left out and counted.
//
// The formats are those of https://prometheus.io/docs/instrumenting/exposition_formats and of OpenMetrics 1.0.
package exposition
