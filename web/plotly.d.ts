// The part of plotly.js that the pages use. It has no types of its own that cover react and events.

declare const Plotly: {
  react(plot: HTMLElement, data: object[], layout: object, config: object): Promise<unknown>;
  toImage(figure: object, options: object): Promise<string>;
  relayout(plot: HTMLElement, layout: object): Promise<unknown>;
};
