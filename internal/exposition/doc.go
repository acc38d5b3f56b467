// Package exposition merges metrics in Prometheus text format or OpenMetrics into one exposition in either format. It
// processes one line at a time, and stores only that line and the names of the families that it has written. For every
// input, the output is valid, because invalid lines are dropped and counted.
//
// The formats are specified in https://prometheus.io/docs/instrumenting/exposition_formats and in OpenMetrics 1.0.
package exposition
